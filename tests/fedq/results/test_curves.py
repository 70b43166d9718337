"""Curves against NumPy, and thinning: whatever stands out is kept."""

from itertools import pairwise
from math import isinf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedcore.statistics import summary
from fedcore.statistics.series import Series
from fedq.results.curves import Window, average_curve, moments, thinned

Floats = NDArray[np.float64]
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LINES = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=200)


def _lines(points: list[tuple[float, float]], *, spread: bool) -> tuple[Floats, Floats]:
    mean, std = np.array(points, np.float64).T
    return mean, std if spread else np.zeros_like(std)


@given(points=LINES, most=st.integers(2, 60), spread=st.booleans())
def test_thinning_keeps_the_ends_and_at_most_so_many_in_order(
    points: list[tuple[float, float]], most: int, spread: bool
) -> None:
    mean, std = _lines(points, spread=spread)
    kept = thinned(mean, std, most)
    assert len(kept) <= most
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(mean) - 1)
    assert len(mean) > most or len(kept) == len(mean)


def _extremes(mean: Floats, std: Floats) -> tuple[float, float, float, float]:
    """Lowest and highest mean, lowest lower and highest upper edge of the band."""
    return mean.min(), mean.max(), (mean - std).min(), (mean + std).max()


@given(points=LINES, most=st.integers(6, 60), spread=st.booleans())
def test_thinning_keeps_the_extremes_of_every_stretch_of_the_mean_and_of_the_band(
    points: list[tuple[float, float]], most: int, spread: bool
) -> None:
    mean, std = _lines(points, spread=spread)
    kept = thinned(mean, std, most)
    count = (most - 2) // (4 if std.any() else 2)
    bounds = [number * len(mean) // count for number in range(count + 1)]
    for start, end in pairwise(bounds):
        if end > start:
            inside = kept[(kept >= start) & (kept < end)]
            assert _extremes(mean[inside], std[inside]) == _extremes(mean[start:end], std[start:end])


def test_a_spike_of_one_round_among_many_is_kept() -> None:
    mean = np.linspace(1.0, 0.0, 10_000)
    mean[1_234], mean[7_777] = 9.0, -9.0
    kept = thinned(mean, np.zeros(10_000), 50)
    assert {1_234, 7_777} <= set(kept)


@given(st.lists(st.lists(st.one_of(st.none(), FINITE), min_size=3, max_size=3), min_size=1, max_size=6))
def test_moments_are_those_of_the_summary(rows: list[list[float | None]]) -> None:
    mean, std, n = moments(np.array(rows, np.float64))
    for place in range(3):
        known = [value for row in rows if (value := row[place]) is not None]
        assert n[place] == len(known)
        if not known:
            assert np.isnan(mean[place])
            continue
        expected, spread = summary.moments(known)
        assert mean[place] == pytest.approx(expected, rel=1e-12, abs=1e-12 * max(map(abs, known)))
        assert (
            np.isnan(std[place])
            if spread is None
            else std[place] == pytest.approx(spread, rel=1e-9, abs=1e-12 * max(map(abs, known)))
        )
        assert not isinf(mean[place])


def _run(values: list[float], sent: float = 1e6) -> Series:
    length = len(values)
    rest = {
        "bytes_up": np.full(length, sent),
        "bytes_down": np.zeros(length),
        "simulated_seconds": np.full(length, nan),
        "epsilon": np.full(length, nan),
    }
    return Series({"train_loss": np.array(values), **rest})


def test_runs_that_end_before_count_up_to_there() -> None:
    made = average_curve([_run([3.0, 2.0, 1.0]), _run([5.0], 3e6)], "train_loss", Window(10))
    assert made is not None
    assert (made.rounds, made.mean, made.n) == ([1, 2, 3], [4.0, 2.0, 1.0], [2, 1, 1])
    assert made.std == [pytest.approx(2**0.5), None, None]
    assert made.megabytes == [2.0, 2.0, 3.0]
    assert made.simulated_seconds == [None] * 3


def test_a_metric_that_no_run_has_is_no_curve() -> None:
    assert average_curve([], "train_loss", Window(10)) is None
    assert average_curve([_run([nan, nan])], "train_loss", Window(10)) is None


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    first=st.integers(1, 70),
    length=st.integers(0, 70),
)
def test_a_stretch_of_a_curve_is_cut_out_of_the_whole(values: list[float], first: int, length: int) -> None:
    runs = [_run(values), _run(values[: len(values) // 2], 3e6)]
    whole, part = (
        average_curve(runs, "train_loss", Window(1_000)),
        average_curve(runs, "train_loss", Window(1_000, first, first + length)),
    )
    assert whole is not None
    assert part is not None
    places = [place for place, round in enumerate(whole.rounds) if first <= round <= first + length]
    for name, listed in part.model_dump().items():
        assert listed == [whole.model_dump()[name][place] for place in places]


def test_a_stretch_has_as_many_points_as_the_whole_had_and_keeps_its_spikes() -> None:
    values = np.linspace(1.0, 0.0, 10_000)
    values[5_005] = 9.0
    made = average_curve([_run(list(values))], "train_loss", Window(100, 5_000, 5_999))
    assert made is not None
    assert (made.rounds[0], made.rounds[-1], max(made.mean)) == (5_000, 5_999, 9.0)
    assert 80 < len(made.rounds) <= 100


def test_the_interval_of_each_point_is_students() -> None:
    made = average_curve(
        [_run([1.0, 4.0, 5.0]), _run([2.0, 6.0]), _run([4.0, 7.0])], "train_loss", Window(10)
    )
    assert made is not None
    for at, values in enumerate([[1.0, 2.0, 4.0], [4.0, 6.0, 7.0]]):
        interval = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
        assert (made.low[at], made.high[at]) == pytest.approx(interval)
    assert (made.low[2], made.high[2]) == (None, None)


def test_an_interval_beyond_the_largest_number_ends_there() -> None:
    made = average_curve([_run([1e308]), _run([-1e308])], "train_loss", Window(10))
    assert made is not None
    largest = float(np.finfo(np.float64).max)
    assert (made.low, made.high) == ([-largest], [largest])
