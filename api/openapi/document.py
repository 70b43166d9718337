"""The OpenAPI document: FastAPI's, with the models of bodies that are not parsed by FastAPI, with
examples and headers.
"""

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from api.experiments.service import PresetSubmission
from api.http.problems import MEDIA_TYPE
from api.openapi.examples import add_examples
from api.webhooks import messages
from fedcore.spec import ExperimentSpec
from fedq.schemas import (
    AccessEdit,
    DecisionEvent,
    ExperimentEdit,
    ExperimentExtension,
    HeartbeatEvent,
    KeyEdit,
    KeyRequest,
    ProblemDetails,
    ResultsFile,
    RoundEvent,
    RunEdit,
    StatusEvent,
    WebhookEdit,
    WebhookRequest,
)

BODIES = (
    ExperimentSpec,
    PresetSubmission,
    ExperimentEdit,
    ExperimentExtension,
    AccessEdit,
    RunEdit,
    KeyRequest,
    KeyEdit,
    ResultsFile,
    WebhookRequest,
    WebhookEdit,
)
ANSWERS = (
    *(ProblemDetails, RoundEvent, StatusEvent, DecisionEvent, HeartbeatEvent),
    *(message for message, _, _ in messages.MESSAGES.values()),
)
FOREIGN = ("HTTPValidationError", "ValidationError")
"""Schemas of FastAPI's own errors, which this service does not return."""

Object = dict[str, Any]
HEADERS = {
    "ETag": (
        "State of the resource. With `If-None-Match`, GET returns 304 while it is the same.",
        'W/"2cf24dba5fb0a30e26e83b2ac5b9e29e"',
    ),
    "Idempotency-Replayed": (
        "`true` if the `Idempotency-Key` was used before; nothing new was created.",
        "true",
    ),
    "Link": (
        "URL of the next page, relative to this one, if there is one (RFC 8288).",
        '</v1/experiments?cursor=exp_01k9x3zq7rh2v8m4t6w0ybe5nc>; rel="next"',
    ),
    "RateLimit": (
        "Requests that are left now (`r`), and seconds until all are there again (`t`).",
        '"default";r=999;t=1',
    ),
    "RateLimit-Policy": (
        "Requests (`q`) that are allowed in a number of seconds (`w`).",
        '"default";q=1000;w=5',
    ),
}
"""Headers of responses: description and example."""


def install(app: FastAPI) -> None:
    """Complete the OpenAPI document of `app`."""
    describe = app.openapi

    def openapi() -> Object:
        if app.openapi_schema is None:
            document = describe()
            schemas = document["components"]["schemas"]
            document["webhooks"] = messages.operations()
            schemas.update(_schemas() | schemas)
            for name in FOREIGN:
                schemas.pop(name, None)
            _illustrate(document)
            _describe_headers(document)
            for schema in schemas.values():
                _omit_default_objects(schema)
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
    """Add examples to each schema, field and JSON body."""
    schemas = document["components"]["schemas"]
    add_examples(schemas)
    for body in _bodies(document):
        names = [_name(choice) for choice in body["schema"].get("anyOf", [body["schema"]])]
        body["examples"] = {name: {"value": schemas[name]["examples"][0]} for name in names if name}


def _bodies(document: Object) -> Iterator[Object]:
    """Yield the JSON and YAML bodies of all operations, of requests and responses other than errors."""
    for path in (*document["paths"].values(), *document["webhooks"].values()):
        for operation in path.values():
            for message in (operation.get("requestBody", {}), *operation["responses"].values()):
                content = message.get("content", {}).items()
                yield from (body for kind, body in content if "schema" in body and kind != MEDIA_TYPE)


def _describe_headers(document: Object) -> None:
    """Name the headers that responses below `/v1` have."""
    document["components"]["headers"] = {
        name: {"description": description, "schema": {"type": "string"}, "example": example}
        for name, (description, example) in HEADERS.items()
    }
    for path, operations in document["paths"].items():
        if path.startswith("/v1/"):
            for method, operation in operations.items():
                for status, response in operation["responses"].items():
                    wanted = [*_headers_of(method, status, operation)]
                    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in wanted}
                    response["headers"] = response.get("headers", {}) | headers


def _headers_of(method: str, status: str, operation: Object) -> Iterator[str]:
    if status != "401":
        yield from ("RateLimit", "RateLimit-Policy")
    if status.startswith("2"):
        names = {given["name"] for given in operation.get("parameters", ())}
        if method == "get":
            yield "ETag"
        if "cursor" in names:
            yield "Link"
        if "Idempotency-Key" in names:
            yield "Idempotency-Replayed"


def _omit_default_objects(schema: Object) -> None:
    """Move defaults that are objects from the fields of a schema to their descriptions.

    Generators of clients cannot make an instance of one of several classes from them
    (openapi-python-client leaves out the whole schema), or require the field (openapi-typescript).
    """
    for field in schema.get("properties", {}).values():
        if isinstance(field.get("default"), dict):
            default = json.dumps(field.pop("default"))
            field["description"] = f"{field['description']} Default: `{default}`."


def _name(schema: Object) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
