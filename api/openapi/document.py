"""The OpenAPI document: FastAPI's, with the models of the bodies that are read by hand, with
examples and links.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from api.experiments.service import PresetSubmission
from api.openapi.examples import examples
from api.openapi.links import link
from fedcore.spec import ExperimentSpec
from fedq.schemas import (
    DecisionEvent,
    ExperimentEdit,
    ExperimentExtension,
    HeartbeatEvent,
    KeyEdit,
    KeyRequest,
    ProblemDetails,
    ResultsFile,
    RoundEvent,
    StatusEvent,
    WebhookEdit,
    WebhookRequest,
)

BODIES = (
    ExperimentSpec,
    PresetSubmission,
    ExperimentEdit,
    ExperimentExtension,
    KeyRequest,
    KeyEdit,
    ResultsFile,
    WebhookRequest,
    WebhookEdit,
)
ANSWERS = (ProblemDetails, RoundEvent, StatusEvent, DecisionEvent, HeartbeatEvent)
FOREIGN = ("HTTPValidationError", "ValidationError")
"""FastAPI's own shapes of errors, which nothing here answers with."""

Object = dict[str, Any]


def install(app: FastAPI) -> None:
    """Make `app` describe itself in full."""
    describe = app.openapi

    def openapi() -> Object:
        if app.openapi_schema is None:
            document = describe()
            schemas = document["components"]["schemas"]
            schemas.update(_schemas() | schemas)
            for name in FOREIGN:
                schemas.pop(name, None)
            _illustrate(document)
            link(document)
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]


def _schemas() -> Object:
    wanted: list[Any] = [
        *((model, "validation") for model in BODIES),
        *((model, "serialization") for model in ANSWERS),
    ]
    _, document = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    definitions: Object = document["$defs"]
    return definitions


def _illustrate(document: Object) -> None:
    """Give each schema, each of its fields, and each JSON body its example."""
    known = examples()
    for name, schema in document["components"]["schemas"].items():
        if name in known:
            schema["examples"] = [known[name]]
        for field, described in schema.get("properties", {}).items():
            if field in known[name]:
                described["examples"] = [known[name][field]]
    for body in _bodies(document):
        names = [_name(choice) for choice in body["schema"].get("anyOf", [body["schema"]])]
        body["examples"] = {name: {"value": known[name]} for name in names if name in known}


def _bodies(document: Object) -> Iterator[Object]:
    """The JSON and YAML bodies of all operations, of requests and responses."""
    for path in document["paths"].values():
        for operation in path.values():
            for message in (operation.get("requestBody", {}), *operation["responses"].values()):
                yield from (body for body in message.get("content", {}).values() if "schema" in body)


def _name(schema: Object) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
