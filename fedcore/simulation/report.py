"""The report of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from fedcore.measures.base import MeasuredValue

COLUMNS = ("train_loss", "test_loss", "test_accuracy", "local_steps", "bytes_up", "bytes_down", "seconds")
"""Measures with a column of their own; the others are in `extra`."""


class StopReason(StrEnum):
    """Why a run succeeded before its last round, other than by diverging."""

    RUNG = "rung"
    """A search did not promote its arm."""
    PATIENCE = "patience"
    """Early stopping: the metric no longer improved."""
    TARGET = "target"
    """Early stopping: the metric was as good as wanted."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Measurements of one round of one run.

    None for values that were not evaluated or have no meaning for the problem.
    """

    arm: int
    """Position in the sweep, from 0."""
    seed: int
    """Seed of the run."""
    round: int
    """Counted from 1; the measures are of the model after this round."""
    local_steps: int
    """Steps of the clients whose work reached the server."""
    bytes_up: int
    """Sent by the clients in this round."""
    bytes_down: int
    """Sent to them."""
    seconds: float
    """Wall-clock time of the round, evaluation included."""
    train_loss: float | None = None
    """f(w) over the training data of all clients."""
    test_loss: float | None = None
    """Mean loss over the test samples."""
    test_accuracy: float | None = None
    """Fraction of correctly classified test samples, 0 to 1."""
    extra: Mapping[str, MeasuredValue] = field(default_factory=dict)
    """Other measures by name."""
    diverged: bool = False
    """The model or its loss is no longer finite; the run ends here."""
    stopped: StopReason | None = None
    """Why early stopping ends the run here."""

    def value(self, metric: str) -> float | None:
        """Return a metric that is a number; None if the round has none."""
        found = getattr(self, metric) if metric in type(self).__slots__ else self.extra.get(metric)
        return cast("float | None", found)

    def row(self) -> dict[str, Any]:
        """Return the round as it is stored: what is not finite is absent."""
        row = {column: _finite(getattr(self, column)) for column in COLUMNS}
        extra = {name: _finite(value) for name, value in self.extra.items()}
        return {"round": self.round, **row, "extra": extra}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return value if value is None or isfinite(value) else None
