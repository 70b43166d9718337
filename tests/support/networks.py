"""Networks whose specification names their number of parameters."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from fedcore.errors import SpecificationError
from fedcore.models import AnyModel
from fedcore.models.layers import build_module
from tests.builders.specifications import Document


def sized(model: Document, features: tuple[int, ...], classes: int, data_dir: Path | None = None) -> Document:
    """`model` with `parameters`, which a worker reports if they are wrong."""
    wrong = TypeAdapter(AnyModel).validate_python({**model, "parameters": 1})
    with pytest.raises(SpecificationError, match=r"parameters, not 1$") as refused:
        build_module(wrong, features, classes, 0, data_dir=data_dir)
    return {**model, "parameters": int(refused.value.detail.split()[2])}
