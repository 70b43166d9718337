"""The catalogue of components that are installed here: all blocks of a specification with several
kinds, derived from their types.
"""

from __future__ import annotations

from functools import cache
from inspect import cleandoc
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedcore.block import Block, kind_of
from fedcore.spec import ExperimentSpec
from fedcore.spec.evaluation import measure_names
from fedcore.spec.kinds import list_kinds
from fedq.schemas import Catalog, CatalogBlock, Kind


@cache
def build_catalog() -> Catalog:
    """The catalogue; it is the same for the life of the process."""
    return Catalog(
        blocks=[
            CatalogBlock(path=path, kinds=[_kind(member) for member in members])
            for path, members in list_kinds().items()
        ],
        measures=list(measure_names()),
        json_schema=ExperimentSpec.model_json_schema(),
    )


def _kind(model: type[Block]) -> Kind:
    fields = model.model_fields
    return Kind(
        kind=kind_of(model),
        description=cleandoc(model.__doc__ or ""),
        source=getattr(model, "source", None),
        defaults={
            name: _default(field)
            for name, field in fields.items()
            if name != "kind" and not field.is_required()
        },
        json_schema=model.model_json_schema(),
    )


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
