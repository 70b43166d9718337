"""State of any shape as tensors by name and a document that is JSON, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
_CLASSES: dict[str, type[Any]] = {}


def stored(cls: type[T]) -> type[T]:
    """Class decorator of values that may be part of a state: named tuples, frozen data classes, and
    enumerations.
    """
    _CLASSES[cls.__name__] = cls
    return cls


def take_apart(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The document of a value; its tensors and arrays are put into `tensors`, under names that begin with
    `name`.
    """
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, np.ndarray):
        # A copy: arrays that a state starts with may be one and the same.
        tensors[name] = torch.from_numpy(value.copy())
        return {"array": name}
    if isinstance(value, Mapping):
        return {"map": [[key, take_apart(part, f"{name}.{key}", tensors)] for key, part in value.items()]}
    kind = type(value).__name__
    known = kind if kind in _CLASSES else None
    if known and is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        made = {key: take_apart(part, f"{name}.{key}", tensors) for key, part in named.items()}
        return {"of": kind, "fields": made}
    if known or isinstance(value, tuple):
        parts = [value.value] if isinstance(value, Enum) else value
        return {
            "of": known,
            "parts": [take_apart(part, f"{name}.{n}", tensors) for n, part in enumerate(parts)],
        }
    value = value.item() if isinstance(value, np.generic) else value
    assert value is None or isinstance(value, bool | int | float | str), f"{name}: {kind} is not stored"
    return value


def put_together(document: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """The value of which `take_apart` made the document, with its tensors on `device`."""
    if not isinstance(document, dict):
        return document
    if "tensor" in document:
        return tensors[document["tensor"]].to(device)
    if "array" in document:
        return tensors[document["array"]].numpy()
    if "map" in document:
        return {key: put_together(part, tensors, device) for key, part in document["map"]}
    if "fields" in document:
        made = {key: put_together(part, tensors, device) for key, part in document["fields"].items()}
        return _CLASSES[document["of"]](**made)
    parts = [put_together(part, tensors, device) for part in document["parts"]]
    return tuple(parts) if document["of"] is None else _CLASSES[document["of"]](*parts)
