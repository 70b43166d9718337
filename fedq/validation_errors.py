"""Validation errors of a document, as the service and the command line tell them."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from fedcore.spec import yaml_documents
from fedcore.spec.validation import advice, place_of
from fedq.schemas import Flaw


class FileCheck(BaseModel):
    """Errors of a file."""

    file: str
    valid: bool
    errors: list[Flaw]


def located(flaws: Sequence[Flaw], text: str) -> list[Flaw]:
    """Return the errors, those in the JSON or YAML document `text` with line and column."""
    # Others are of parameters, headers and code bundles.
    pointers = {flaw.pointer for flaw in flaws if flaw.pointer == "" or flaw.pointer.startswith("/")}
    places = yaml_documents.locate(text, pointers)
    return [
        flaw.model_copy(update=places[flaw.pointer]._asdict()) if flaw.pointer in places else flaw
        for flaw in flaws
    ]


def errors_of(errors: Sequence[Any], model: type[BaseModel], document: Any, at: str = "") -> list[Flaw]:
    """Convert pydantic's errors about `document`, which stands at `at` in the body and should be a
    `model`.
    """
    within = {
        error["loc"][:depth]
        for error in errors
        for depth in range(len(error["loc"]))
        if error["type"] != "too_short"
    }
    # A list of which an entry is wrong is said to be too short as well: Pydantic counts only right
    # ones.
    told = [error for error in errors if error["type"] != "too_short" or error["loc"] not in within]
    return [Flaw(pointer=at + place_of(error, document), detail=advice(error, model)) for error in told]
