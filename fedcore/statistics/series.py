"""The measures of one run over its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fedcore.lazy import np
from fedcore.statistics.summary import SELECTORS, better_of, selector_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One run's curve of some measures over its rounds 1, 2, ..., T."""

    columns: Mapping[str, Floats]
    """Values [T] by measure; NaN where a round has none."""

    @property
    def rounds(self) -> range:
        """1, 2, ..., T."""
        return range(1, len(next(iter(self.columns.values()))) + 1)

    def has(self, metric: str) -> bool:
        """True if a round has a value of this measure."""
        return not np.isnan(self.columns[metric]).all()

    def listed(self, metric: str) -> list[float | None]:
        """A measure by round; None where the round has none."""
        absent = np.isnan(self.columns[metric])
        if absent.all():
            return [None] * len(absent)
        values: list[float | None] = self.columns[metric].tolist()
        for place in np.flatnonzero(absent):
            values[place] = None
        return values

    def bounds(self, metric: str) -> list[float]:
        """The lowest and the highest value of a measure; none where it has none."""
        values = self.columns[metric]
        return [float(np.nanmin(values)), float(np.nanmax(values))] if self.has(metric) else []

    def best(self, metric: str) -> float | None:
        """The best value of a measure; of one of test samples its value in the round that is best by
        validation, if rounds have both. None without values, or better and worse.
        """
        values, judge = self.columns[metric], selector_of(metric, self.selectors)
        judged = values if judge is None else np.where(np.isnan(values), np.nan, self.columns[judge])
        if judge is None or np.isnan(judged).all():
            judge, judged = metric, values
        better = better_of(judge)
        if better is None or np.isnan(judged).all():
            return None
        return float(values[np.nanargmax(judged) if better is max else np.nanargmin(judged)])

    @cached_property
    def selectors(self) -> list[str]:
        """The measures of validation samples that rounds have, to select by."""
        return [name for name in SELECTORS if name in self.columns and self.has(name)]

    def ending(self, metric: str) -> list[float | None]:
        """The latest known value of a measure, and that of the last round.

        None where there is none.
        """
        values = self.columns[metric]
        known = np.flatnonzero(~np.isnan(values))
        if not len(known):
            return [None, None]
        return [float(values[known[-1]]), float(values[-1]) if known[-1] == len(values) - 1 else None]

    def total(self, metric: str) -> float:
        """The sum of a measure over the rounds that have it."""
        return float(np.nansum(self.columns[metric]))
