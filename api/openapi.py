"""The OpenAPI document: FastAPI's, with the models of the bodies that are read by hand."""

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from api.schemas import ExperimentEdit, HeartbeatEvent, ProblemDetails, RoundEvent, StatusEvent
from api.submissions import PresetSubmission
from fedcore.spec import ExperimentSpec

BODIES = (ExperimentSpec, PresetSubmission, ExperimentEdit)
ANSWERS = (ProblemDetails, RoundEvent, StatusEvent, HeartbeatEvent)


def install(app: FastAPI) -> None:
    """Make `app` describe itself in full."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = describe()["components"]["schemas"]
            schemas.update(_schemas() | schemas)
            # FastAPI's own shapes of errors, which nothing here answers with.
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]


def _schemas() -> dict[str, Any]:
    wanted: list[Any] = [*((model, "validation") for model in BODIES), *((model, "serialization") for model in ANSWERS)]
    _, document = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    definitions: dict[str, Any] = document["$defs"]
    return definitions
