"""The component under test, and the tiny experiments in which it is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcore.block import kind_of
from fedcore.errors import ExtensionError
from fedcore.packages import with_kind
from fedcore.spec import ExperimentSpec
from fedcore.spec.components import FAMILIES

Document = dict[str, Any]

CLIENTS = 4
EXACT: Document = {
    "name": "exact",
    "problem": {
        "dataset": {
            "kind": "quadratic",
            "clients": [
                {
                    "H": [[1.0, 0.2, 0.0], [0.2, 0.8, 0.1], [0.0, 0.1, 0.6]],
                    "e": [1.0, -2.0, 0.5],
                    "weight": 1.0,
                },
                {
                    "H": [[0.7, 0.0, 0.1], [0.0, 1.2, 0.0], [0.1, 0.0, 0.9]],
                    "e": [-1.5, 0.5, 2.0],
                    "weight": 2.0,
                },
                {
                    "H": [[1.1, -0.3, 0.0], [-0.3, 0.9, 0.0], [0.0, 0.0, 0.7]],
                    "e": [2.0, 1.0, -1.0],
                    "weight": 3.0,
                },
                {
                    "H": [[0.6, 0.0, 0.0], [0.0, 0.7, 0.2], [0.0, 0.2, 1.3]],
                    "e": [-0.5, 1.5, 1.0],
                    "weight": 1.5,
                },
            ],
            "x0": [1.0, -2.0, 0.5],
        }
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.05, "steps": 5},
    "systems": {"steps": {"kind": "per_client", "values": [5, 1, 7, 3]}},
    "rounds": 4,
}
"""Four heterogeneous strongly convex quadratics in three dimensions, with unequal local steps."""

SAMPLED: Document = {
    "name": "sampled",
    "problem": {
        "dataset": {"kind": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 6, "seed": 12},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"optimizer": {"lr": 0.01, "momentum": 0.5}, "epochs": 1, "batch_size": 50},
    "participation": {"kind": "uniform", "clients_per_round": 3},
    "systems": {"stragglers": {"fraction": 0.5, "policy": "accept_partial"}},
    "rounds": 3,
    "execution": {"precision": "float64"},
}
"""Softmax regression on six unequal clients with stragglers and short last batches.

They have 50 to 166 samples; under other seeds one has thousands, and takes most of the time.
"""

IMAGES: Document = {
    "name": "images",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": 4, "alpha": 0.5, "seed": 1},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.05, "steps": 2, "batch_size": 10},
    "rounds": 2,
    "evaluation": {"measures": []},
    "execution": {"precision": "float64"},
}
"""Small real images on four unequal clients."""


@dataclass(frozen=True)
class Subject:
    """A component under test."""

    component: type[Any]
    family: str
    document: Document = field(default_factory=dict)
    """Fields that differ from the component's example."""
    data_dir: Path | None = None
    """Folder of the data sets (default: DATA_DIR)."""

    @cached_property
    def known(self) -> type[Any]:
        """The component, under a kind of its own if another component has its kind."""
        if "kind" not in self.component.model_fields:
            return self.component
        family, kind = FAMILIES[self.family], kind_of(self.component)
        taken = family.find(kind)
        if taken is self.component or taken is None or taken not in family:
            return self.component
        return with_kind(self.component, f"{self.component.__module__.partition('.')[0]}/{kind}")

    @property
    def example(self) -> Document:
        """The component's example, with its kind."""
        kind = {"kind": kind_of(self.known)} if "kind" in self.component.model_fields else {}
        return {**kind, **self.component.example, **self.document}

    def spec(self) -> Any:
        """The specification of the example, read anew: no object is shared between two of them."""
        return self.known.model_validate(self.example)

    def experiment(self, base: Document, path: str, **changes: Any) -> ExperimentSpec:
        """The experiment `base` with the component at the dotted `path`, and with `changes` of blocks."""
        document: Document = {**base, **changes}
        *outer, name = path.split(".")
        block = document
        for part in outer:
            block[part] = dict(block.get(part) or {})
            block = block[part]
        block[name] = self.spec()
        return ExperimentSpec.model_validate(document)


def subject_of(component: type[Any], family: str | None = None, data_dir: Path | None = None) -> Subject:
    """The component as a subject; `family` only where two families share a base class.

    Raises ExtensionError if it belongs to no family.
    """
    found = family or next(_families_of(component), None)
    if found is None or found not in FAMILIES:
        bases = ", ".join(sorted({family.base.__name__ for family in FAMILIES.values()}))
        raise ExtensionError(
            f"{component.__name__} is a component of no family that has checks; extend one of {bases}"
        )
    return Subject(component, found, data_dir=data_dir)


def _families_of(component: type[Any]) -> Iterator[str]:
    return (name for name, family in FAMILIES.items() if issubclass(component, family.base))
