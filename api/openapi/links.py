"""The links of the OpenAPI document: what can be asked of a thing by the id that an answer
gives.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Object = dict[str, Any]


class Source(NamedTuple):
    """An answer that names a thing."""

    path: str
    method: str
    status: str
    parameter: str
    """Of the paths that ask for the thing."""
    value: str = "$response.body#/id"
    """Where in the answer its id is."""


SOURCES = (
    Source("/v1/experiments", "post", "201", "experiment_id"),
    Source("/v1/experiments/{experiment_id}/runs", "get", "200", "run_id", "$response.body#/items/0/id"),
    Source("/v1/datasets", "post", "201", "dataset_id"),
    Source("/v1/webhooks", "post", "201", "webhook_id"),
    Source("/v1/webhooks/{webhook_id}/ping", "post", "202", "delivery_id"),
    Source("/v1/keys", "post", "201", "key_id"),
)
"""Those that make a thing, and the runs that an experiment has made."""


def link(document: Object) -> None:
    """Say of each source which operations it leads to, by the names of these."""
    for source in SOURCES:
        given = {name: f"$request.path.{name}" for name in _parameters(source.path)} | {
            source.parameter: source.value
        }
        answer = document["paths"][source.path][source.method]["responses"][source.status]
        answer["links"] = dict(_links(document, source.parameter, given))


def _links(document: Object, parameter: str, given: dict[str, str]) -> Iterator[tuple[str, Object]]:
    for path, operations in document["paths"].items():
        needed = _parameters(path)
        if parameter in needed and needed <= given.keys():
            parameters = {one: given[one] for one in sorted(needed)}
            for operation in operations.values():
                name = operation["operationId"]
                yield (
                    name,
                    {"operationId": name, "parameters": parameters, "description": operation["summary"]},
                )


def _parameters(path: str) -> set[str]:
    """Those of a path; where a thing is asked for in a `form`, any will do."""
    return set(re.findall(r"{(\w+)}", path)) - {"form"}
