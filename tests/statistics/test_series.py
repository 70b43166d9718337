"""Figures of one run's curve, beside those that are stored as its rounds come."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.platform.store.curves import updated_figures
from fedcore.statistics.series import Series
from fedcore.statistics.summary import better_of

VALUES = st.one_of(st.none(), st.integers(0, 4).map(float))
"""Values of a round, often equal ones; None: not evaluated."""


def series(**columns: list[float | None]) -> Series:
    return Series({name: np.array(values, np.float64) for name, values in columns.items()})


@pytest.mark.parametrize("selector", ["validation_accuracy", "validation_loss"])
@pytest.mark.parametrize("metric", ["test_accuracy", "test_loss", "personal_accuracy"])
@given(rows=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=12))
def test_the_best_of_a_test_measure_is_that_of_the_first_round_that_is_best_by_validation(
    metric: str, selector: str, rows: list[tuple[float | None, float | None]]
) -> None:
    columns = {metric: [tested for tested, _ in rows], selector: [judged for _, judged in rows]}
    both = [(judged, tested) for tested, judged in rows if tested is not None and judged is not None]
    better: Any = better_of(selector)
    expected = better(both, key=lambda pair: pair[0])[1] if both else None
    found = series(**columns).best(metric)
    if both:
        assert found == expected
    documents = [
        (round, {name: value for name in columns if (value := columns[name][round - 1]) is not None})
        for round in range(1, len(rows) + 1)
    ]
    # Stored in two parts, as JSON has them.
    half = len(documents) // 2
    stored = {name: list(figures) for name, figures in updated_figures({}, documents[:half]).items()}
    figures = updated_figures(stored, documents[half:])
    if both:
        assert (figures[metric].low, figures[metric].high) == (expected, expected)
    elif metric in figures:
        assert found == (figures[metric].high if better_of(metric) is max else figures[metric].low)


@given(values=st.lists(VALUES, min_size=1, max_size=12), judged=st.lists(VALUES, min_size=12, max_size=12))
def test_other_measures_have_their_own_best(values: list[float | None], judged: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    curve = series(train_loss=values, validation_loss=judged[: len(values)], bytes_up=values)
    assert curve.best("train_loss") == min(known, default=None)
    assert curve.best("bytes_up") is None
