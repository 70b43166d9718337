"""Examples for the OpenAPI document: those of the kinds of blocks, and documents of `examples.yaml`."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from pydantic import BaseModel

from api.experiments.service import PresetSubmission
from fedcore.block import kind_of
from fedcore.spec import ExperimentSpec, yaml_documents
from fedcore.spec.kinds import kinds
from fedq import schemas


def documents() -> Mapping[str, Any]:
    """Return the documents of `examples.yaml` by name of their schema."""
    text = resources.files("api.openapi").joinpath("examples.yaml").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = yaml_documents.load(text)
    return loaded


def examples() -> dict[str, Any]:
    """An example for each schema, by its name."""
    read = documents()
    specifications = [ExperimentSpec.model_validate(document) for document in read["ExperimentSpec"]]
    blocks = [
        member.model_validate({"kind": kind_of(member), **member.example})
        for members in kinds().values()
        for member in members
    ]
    submitted = [PresetSubmission.model_validate(read["PresetSubmission"]), *blocks, *specifications]
    answered = [
        getattr(schemas, name).model_validate(document)
        for name, document in read.items()
        if hasattr(schemas, name)
    ]
    found: dict[str, Any] = {}
    for model in (part for whole in (*submitted, *answered) for part in _parts(whole)):
        # What a specification leaves out, an example need not say; an answer leaves nothing out.
        found.setdefault(
            type(model).__name__,
            model.model_dump(mode="json", exclude_none=not isinstance(model, schemas.Schema)),
        )
    return found


def _parts(value: Any) -> Iterator[BaseModel]:
    """The models in `value`, itself first."""
    if isinstance(value, BaseModel):
        yield value
        value = [getattr(value, field) for field in type(value).model_fields]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from _parts(entry)
