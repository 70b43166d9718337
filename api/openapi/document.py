"""The OpenAPI document: FastAPI's, with the models of bodies that are not parsed by FastAPI, and with
examples. What all operations have in common, such as headers, is in docs/http-clients.md.
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


def install(app: FastAPI) -> None:
    """Complete the OpenAPI document of `app`."""
    describe = app.openapi

    def openapi() -> Object:
        document = describe()
        # FastAPI makes it anew after routes have been added.
        if "webhooks" not in document:
            schemas = document["components"]["schemas"]
            document["webhooks"] = messages.operations()
            schemas.update(_schemas() | schemas)
            for name in FOREIGN:
                schemas.pop(name, None)
            _illustrate(document)
            for schema in schemas.values():
                _omit_default_objects(schema)
        return document

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
