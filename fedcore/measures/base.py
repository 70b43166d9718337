"""Declarations of measures, from which names, checks, directions and the reference are derived."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec

Measured = dict[str, float | list[float]]
"""Values by name; an undefined value is inf or NaN."""


@dataclass(frozen=True)
class MeasureInfo:
    """A measure: its name, and what readers and checks of specifications need to know of it."""

    name: str
    meaning: str
    """Definition, in Markdown."""
    null_if: str = ""
    """Case in which the value is undefined, in Markdown."""
    better: Literal["min", "max"] | None = None
    """Direction; None if neither lower nor higher is better."""
    needs: Literal["tests", "classes"] | None = None
    """Test samples, or test samples with classes, which exact problems do not have."""
    per_client: bool = False
    """True for a list over all clients, which rows have and figures do not."""
    offered_by: Callable[[type[AlgorithmSpec]], bool] = lambda _algorithm: True
    """True for the algorithms whose rounds have the measure."""


@dataclass(frozen=True)
class MeasureGroup:
    """Measures that are computed together."""

    measures: tuple[MeasureInfo, ...]
    of: Literal["model", "population", "round"]
    """The model after the round; the same, client by client over the whole population; the clients
    whose work reached the server in the round.
    """
    compute: Callable[..., Measured] | None = None
    """Of a population, from (problem, x, surrogate weights); of a round, from (problem, observed);
    None of a model, whose losses the problem evaluates.
    """
    needs_deltas: bool = False
    """True if a round must show the delta of each client."""

    def is_asked(self, names: Collection[str]) -> bool:
        """True if one of the measures is among `names`."""
        return any(measure.name in names for measure in self.measures)
