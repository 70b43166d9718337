"""Rows and specifications as the flat names and values that other tools use."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fedcore.spec.sweep import expand
from fedq import schemas

Value = str | bool | int | float

NO_MEASURES = frozenset({"round", "extra", "committed_at"})
NO_PARAMETERS = frozenset({"name", "description", "tags", "seeds"})


def scalars(row: schemas.RoundRow) -> dict[str, float]:
    """Measures of a round by name, without absent ones; entries of a list as `NAME/INDEX`."""
    usual = row.model_dump(exclude=set(NO_MEASURES))
    return {name: float(value) for name, value in _entries({**usual, **row.extra}) if value is not None}


def _entries(measures: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for name, value in measures.items():
        if isinstance(value, list):
            yield from ((f"{name}/{place}", entry) for place, entry in enumerate(value))
        else:
            yield name, value


def arms(experiment: schemas.Experiment) -> list[dict[str, Any]]:
    """The specification of each arm, without the sweep."""
    return [point.document for point in expand(experiment.specification)]


def parameters(document: Mapping[str, Any], seed: int) -> dict[str, Value]:
    """Parameters of a run by dotted path: the specification of its arm, without null values, and
    its seed.
    """
    wanted = {name: value for name, value in document.items() if name not in NO_PARAMETERS}
    return dict(leaves({"seed": seed, **wanted}))


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Value]]:
    """Values of a document by dotted path, with indexes for lists of blocks. A list of numbers or
    strings is a single value, as JSON.
    """
    if isinstance(document, Mapping):
        entries = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list) and any(isinstance(entry, Mapping | list) for entry in document):
        entries = [(str(place), entry) for place, entry in enumerate(document)]
    else:
        entries = []
        if document is not None:
            yield path, document if isinstance(document, Value) else json.dumps(document)
    for name, value in entries:
        yield from leaves(value, f"{path}.{name}" if path else name)
