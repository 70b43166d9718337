"""Axes of figures on which every finite value has a place.

Matplotlib's own margins and ticks overflow near the ends of float64, and it drops zero from logarithmic
axes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, Literal, Self

from matplotlib.ticker import FuncFormatter, PercentFormatter

from fedq.figures.style import Limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST, SMALLEST = 1e100, 1e-100
"""Larger magnitudes are drawn at the first, smaller ones as zero."""
MARGIN, LEAST_DECADES = 0.04, 0.02
"""Room at each end, as a share of what lies between, and at least on a logarithmic axis."""
WRITTEN_OUT = (1e-4, 1e5)
"""Shares whose percents are written out."""


@dataclass(frozen=True)
class ValueAxis:
    """One axis, linear or logarithmic."""

    name: Literal["x", "y"]
    is_log: bool
    limits: Limits
    """Ends of the axis; None where there are no values."""
    lowest: float = SMALLEST
    """Value at which zero and negative values are drawn on a logarithmic axis: below all others."""

    @classmethod
    def of(
        cls, name: Literal["x", "y"], values: Iterable[float], limits: Limits = (None, None), *, is_log: bool
    ) -> Self:
        """The axis that shows `values`, or what of them lies between the given `limits`."""
        known = [_clip(value) for value in values]
        if not known:
            return cls(name, is_log, limits)
        if not is_log:
            low, high = min(known), max(known)
            room = MARGIN * (high - low) or 0.1 * abs(high) or 1.0
            return cls(name, is_log, _ends(limits, low - room, high + room))
        positive = [value for value in known if value > 0]
        first, last = (log10(min(positive)), log10(max(positive))) if positive else (-1.0, 0.0)
        room = max(MARGIN * (last - first), LEAST_DECADES)
        lowest = 10 ** (first - room)
        low = 10 ** (first - 1.5 * room) if len(positive) < len(known) else lowest
        return cls(name, is_log, _ends(limits, low, 10 ** (last + room)), lowest)

    def place(self, values: Iterable[float]) -> list[float]:
        """Where the values are drawn."""
        known = (_clip(value) for value in values)
        return [self.lowest if self.is_log and value <= 0 else value for value in known]

    def set_up(self, axes: "Axes", *, in_percent: bool = False) -> None:
        """Give `axes` this scale, before anything is drawn; with `in_percent`, values are shares."""
        axis = getattr(axes, f"{self.name}axis")
        if self.is_log:
            getattr(axes, f"set_{self.name}scale")("log")
        if in_percent:
            farthest = max(abs(end or 0.0) for end in self.limits)
            if not self.is_log and WRITTEN_OUT[0] <= farthest <= WRITTEN_OUT[1]:
                axis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))
            else:
                axis.set_major_formatter(FuncFormatter(lambda share, _place: f"{100 * share:g}"))
        if self.limits != (None, None):
            getattr(axes, f"set_{self.name}lim")(*self.limits)


def _clip(value: float) -> float:
    """The value, or the nearest one that is drawn."""
    if abs(value) < SMALLEST:
        return 0.0
    return max(-LARGEST, min(LARGEST, value))


def _ends(given: Limits, low: float, high: float) -> Limits:
    return (low if given[0] is None else given[0], high if given[1] is None else given[1])
