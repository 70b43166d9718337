"""Curves: a metric over the rounds of several runs, thinned without losing a spike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import TYPE_CHECKING, NamedTuple

from fedcore.lazy import np
from fedcore.statistics.summary import students_quantile
from fedq.schemas import Curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedcore.statistics.series import Series

    Floats = NDArray[np.float64]

MEGABYTE = 1e6


class Window(NamedTuple):
    """Part of a curve: at most `points` points of the rounds from `first` to `last`, both included;
    None: to the end.
    """

    points: int
    first: int = 1
    last: int | None = None


def megabytes(run: Series) -> Floats:
    """Return the megabytes [T] sent in both directions up to each round."""
    return (
        np.cumsum(np.nan_to_num(run.columns["bytes_up"]) + np.nan_to_num(run.columns["bytes_down"]))
        / MEGABYTE
    )


def area(run: Series, metric: str) -> float | None:
    """Return the mean height of the polygon through a run's values v_1 ... v_m in the evaluated
    rounds r_1 < ... < r_m.

    sum_i (r_{i+1} - r_i) (v_i + v_{i+1}) / 2 / (r_m - r_1); v_1 if there is only one; None if there
    is none.
    """
    values = run.columns[metric]
    rounds = np.flatnonzero(np.isfinite(values))
    if not len(rounds):
        return None
    known = values[rounds]
    scale = float(np.abs(known).max()) or 1.0
    heights = known / scale
    if len(rounds) == 1:
        return scale * float(heights[0])
    # `np.trapezoid` came with NumPy 2.
    trapezoids = np.diff(rounds) * (heights[1:] + heights[:-1]) / 2
    return scale * float(trapezoids.sum() / (rounds[-1] - rounds[0]))


def first_reaching(run: Series, metric: str, target: float, better: Callable[..., float]) -> int | None:
    """Return the first round whose value reaches the target, counted from 1; None if none does.

    `better` is max or min.
    """
    values = run.columns[metric]
    with np.errstate(invalid="ignore"):
        reached = np.flatnonzero(values >= target if better is max else values <= target)
    return int(reached[0]) + 1 if len(reached) else None


def average_curve(runs: Sequence[Series], metric: str, window: Window) -> Curve | None:
    """Return the mean over the runs that have a value, with the megabytes that they had sent,
    their simulated time and their epsilon; None if there is no value.

    The first and last round in the window are always kept.
    """
    values = _beside([run.columns[metric] for run in runs])
    evaluated = np.flatnonzero(np.isfinite(values).any(0))
    if not len(evaluated):
        return None
    evaluated = evaluated[
        (evaluated + 1 >= window.first) & (evaluated + 1 <= (window.last or len(values[0])))
    ]
    mean, std, n = moments(values[:, evaluated])
    kept = thinned(mean, np.nan_to_num(std), window.points)
    rounds = evaluated[kept]
    known = np.isfinite(values[:, rounds])
    sent, clock, spent = (
        np.where(known, _beside(columns)[:, rounds], np.nan)
        for columns in (
            [megabytes(run) for run in runs],
            *([run.columns[name] for run in runs] for name in ("simulated_seconds", "epsilon")),
        )
    )
    low, high = _interval(mean[kept], std[kept], n[kept])
    return Curve(
        rounds=(rounds + 1).tolist(),
        megabytes=moments(sent)[0].tolist(),
        simulated_seconds=_listed(moments(clock)[0]),
        epsilon=_listed(moments(spent)[0]),
        mean=mean[kept].tolist(),
        std=_listed(std[kept]),
        low=_listed(low),
        high=_listed(high),
        n=n[kept].tolist(),
    )


def moments(values: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return mean, sample standard deviation and count of the numbers in each column of `values`
    [S, T], each [T]; NaN if unknown.

    Like `fedcore.statistics.summary.moments` without overflow for any finite values.
    """
    known = np.isfinite(values)
    held, n = np.where(known, values, 0.0), known.sum(0)
    scale = np.abs(held).max(0)
    scale[scale == 0] = 1.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = (held / scale).sum(0) / n
        std = np.sqrt((np.where(known, held / scale - mean, 0.0) ** 2).sum(0) / (n - 1)) * scale
        mean = np.where(n == 1, held.sum(0), mean * scale)
    return mean, np.where((n > 1) & np.isfinite(std), std, np.nan), n


def thinned(mean: Floats, std: Floats, points: int) -> NDArray[np.int64]:
    """Which of the points [T] to keep, at most `points`: the first, the last, and of each of equal
    stretches the extremes.

    These are the lowest and highest mean and, where runs differ, edge of the band mean +- std: a
    picture with a column for each stretch shows of these what it shows of all points (Jugel et al.,
    M4, VLDB 2014). With too few points for one stretch the ends alone are kept.
    """
    total = len(mean)
    if total <= points:
        return np.arange(total)
    lines: list[tuple[Floats, Callable[..., NDArray[np.int64]]]] = [(mean, np.argmin), (mean, np.argmax)]
    if std.any():
        with np.errstate(over="ignore"):
            lines += [(mean - std, np.argmin), (mean + std, np.argmax)]
    stretches = (points - 2) // len(lines)
    bounds = np.arange(stretches + 1) * total // max(stretches, 1)
    kept = [_extremes(line, bounds, extreme) for line, extreme in lines if stretches]
    return np.unique(np.concatenate([[0, total - 1], *kept]))


def _extremes(
    line: Floats, bounds: NDArray[np.int64], extreme: Callable[..., NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return the position of the extreme of `line` [T] in each stretch between two of `bounds`."""
    # As wide as the widest of them; in narrower ones the last point stands twice.
    reach = np.arange(np.diff(bounds).max())
    places = np.minimum(bounds[:-1, None] + reach, bounds[1:, None] - 1)
    return places[np.arange(len(places)), extreme(line[places], axis=1)]


def _beside(columns: Sequence[Floats]) -> Floats:
    """Stack columns of different lengths to [S, T], padded with NaN."""
    table = np.full((len(columns), max(map(len, columns), default=0)), np.nan)
    for row, column in zip(table, columns, strict=True):
        row[: len(column)] = column
    return table


def _interval(mean: Floats, std: Floats, n: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the ends of Student's confidence interval of each mean [T]: NaN of a single run, the
    largest number in place of an infinite one.
    """
    numbers, places = np.unique(n, return_inverse=True)
    quantiles = np.array([students_quantile(k - 1) if k > 1 else np.nan for k in numbers.tolist()])
    largest = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        reach = quantiles[places] * std / np.sqrt(n)
        return np.maximum(mean - reach, -largest), np.minimum(mean + reach, largest)


def _listed(values: Floats) -> list[float | None]:
    return [None if isnan(value) else value for value in values.tolist()]
