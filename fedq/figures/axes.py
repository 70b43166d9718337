"""Axes of figures on which every finite value has a place, up to the ends of float64.

Matplotlib's own margins and ticks overflow there, and it drops zero from logarithmic axes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor, log10, ulp
from sys import float_info
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter, ScalarFormatter

from fedq.figures.style import Limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST, SMALLEST = float_info.max, ulp(0.0)
ORDINARY = (1e-250, 1e250)
"""Magnitudes that Matplotlib draws on linear axes without overflow or underflow."""
MARGIN, LEAST_DECADES = 0.04, 0.02
"""Room at each end, as a share of what lies between, and at least on a logarithmic axis."""


@dataclass(frozen=True)
class ValueAxis:
    """One axis: linear in units of 10^`exponent`, or logarithmic."""

    name: Literal["x", "y"]
    is_log: bool
    limits: Limits
    """Ends of the axis in its units; None where there are no values."""
    exponent: int = 0
    lowest: float = SMALLEST
    """Value at which zero and negative values are drawn on a logarithmic axis: below all others."""

    @classmethod
    def of(
        cls, name: Literal["x", "y"], values: Iterable[float], limits: Limits = (None, None), *, is_log: bool
    ) -> Self:
        """The axis that shows finite `values`, or what of them lies between the given `limits`."""
        known = list(values)
        return cls._logarithmic(name, known, limits) if is_log else cls._linear(name, known, limits)

    @classmethod
    def _logarithmic(cls, name: Literal["x", "y"], values: Sequence[float], limits: Limits) -> Self:
        positive = [value for value in values if value > 0]
        if not values:
            return cls(name, is_log=True, limits=limits)
        first, last = (log10(min(positive)), log10(max(positive))) if positive else (-1.0, 0.0)
        room = max(MARGIN * (last - first), LEAST_DECADES)
        lowest, high = _power(first - room), _power(last + room)
        low = _power(first - 1.5 * room) if len(positive) < len(values) else lowest
        # Two of the smallest numbers may be nearer to each other than any margin.
        ends = _ends(limits, low, high if high > low else 2 * low)
        return cls(name, is_log=True, limits=ends, lowest=lowest)

    @classmethod
    def _linear(cls, name: Literal["x", "y"], values: Sequence[float], limits: Limits) -> Self:
        size = max(map(abs, (*values, *(end for end in limits if end is not None))), default=0.0)
        exponent = 0 if size == 0 or ORDINARY[0] <= size <= ORDINARY[1] else floor(log10(size))
        scaled = [_scaled(value, exponent) for value in values]
        start, end = (None if limit is None else _scaled(limit, exponent) for limit in limits)
        if not scaled:
            return cls(name, is_log=False, limits=(start, end), exponent=exponent)
        low, high = min(scaled), max(scaled)
        room = MARGIN * (high - low) or 0.1 * abs(high) or 1.0
        ends = _ends((start, end), low - room, high + room)
        return cls(name, is_log=False, limits=ends, exponent=exponent)

    def place(self, values: Iterable[float]) -> list[float]:
        """The values in the units of the axis."""
        if self.is_log:
            return [self.lowest if value <= 0 else value for value in values]
        return [_scaled(value, self.exponent) for value in values]

    def set_up(self, axes: "Axes", *, in_percent: bool = False) -> None:
        """Give `axes` this scale, before anything is drawn; with `in_percent`, values are shares."""
        axis = getattr(axes, f"{self.name}axis")
        if self.is_log:
            getattr(axes, f"set_{self.name}scale")("log")
            axis.set_major_locator(FiniteLogLocator())
            axis.set_minor_locator(FiniteLogLocator(subs="auto"))
            if in_percent:
                axis.set_major_formatter(FuncFormatter(lambda value, _place: _percent(value)))
        elif self.exponent:
            axis.set_major_formatter(ScaledFormatter(self.exponent + (2 if in_percent else 0)))
        elif in_percent:
            axis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))
        if self.limits != (None, None):
            getattr(axes, f"set_{self.name}lim")(*self.limits)


class FiniteLogLocator(LogLocator):
    """LogLocator without the ticks beyond the ends of float64."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Ticks around the two limits."""
        with np.errstate(over="ignore", under="ignore"):
            ticks = np.asarray(super().tick_values(vmin, vmax))
        return ticks[np.isfinite(ticks) & (ticks > 0)]


class ScaledFormatter(ScalarFormatter):
    """Numbers in units of 10^`exponent`, which stands at the end of the axis."""

    def __init__(self, exponent: int) -> None:
        super().__init__(useOffset=False)
        self._exponent = exponent

    def get_offset(self) -> str:
        """The unit."""
        return f"1e{self._exponent}"


def finite(value: float) -> float:
    """The number, or the largest one in place of an infinite one."""
    return max(-LARGEST, min(LARGEST, value))


def _ends(given: Limits, low: float, high: float) -> Limits:
    return (low if given[0] is None else given[0], high if given[1] is None else given[1])


def _scaled(value: float, exponent: int) -> float:
    """`value` / 10^`exponent`, in two steps where the power is no number."""
    first = max(-300, min(300, -exponent))
    return value * 10.0**first * 10.0 ** (-exponent - first)


def _power(exponent: float) -> float:
    """10^`exponent`, or the nearest positive number."""
    return LARGEST if exponent >= log10(LARGEST) else max(SMALLEST, 10.0**exponent)


def _percent(share: float) -> str:
    if share < LARGEST / 100:
        return f"{100 * share:g}"
    return f"{Decimal(f'{share:.6g}').scaleb(2):g}"
