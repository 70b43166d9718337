"""Axes show every finite value in its order, up to the ends of float64."""

import re
from decimal import Decimal
from io import BytesIO
from itertools import pairwise
from math import log10
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedq.figures.axes import LARGEST, SMALLEST, ValueAxis

ANY = st.floats(allow_nan=False, allow_infinity=False)
ENDS = st.sampled_from([0.0, -0.0, SMALLEST, 2 * SMALLEST, 1e-308, 1.0, 1e294, 1e307, LARGEST / 2, LARGEST])
NUMBERS = st.one_of(ANY, ENDS, ENDS.map(lambda end: -end))


def shares(axis: ValueAxis, values: list[float]) -> list[float]:
    """How far along the axis Matplotlib draws the values: 0 at its lower end, 1 at its upper end."""
    axes = Figure().subplots()
    axis.set_up(axes)
    box = axes.bbox.get_points()
    points = axes.transData.transform([(1.0, place) for place in axis.place(values)])
    return [float(up) for up in (points[:, 1] - box[0, 1]) / (box[1, 1] - box[0, 1])]


@settings(max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=8), st.booleans())
def test_every_finite_value_is_within_the_axis_and_none_out_of_order(
    values: list[float], is_log: bool
) -> None:
    ordered = sorted(values)
    found = shares(ValueAxis.of("y", values, is_log=is_log), ordered)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in found)
    assert all(low <= high + 1e-9 for low, high in pairwise(found))


@settings(max_examples=50)
@given(NUMBERS, NUMBERS, st.booleans())
def test_values_that_differ_are_drawn_apart(one: float, other: float, is_log: bool) -> None:
    low, high = sorted((one, other))
    # Below, float64 has too few numbers for a place of zero under them.
    differ = 1e-320 < high > 2 * max(low, 0.0) if is_log else abs(high / 2 - low / 2) > 0.01 * abs(one)
    first, second = shares(ValueAxis.of("y", [low, high], is_log=is_log), [low, high])
    assert not differ or second - first > 0.3


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("in_percent", [False, True])
@pytest.mark.parametrize(
    ("values", "is_log"),
    [
        ([0.0, 1e307], False),
        ([-LARGEST, LARGEST], False),
        ([3.0, 5.0], False),
        ([SMALLEST, 4 * SMALLEST], False),
        ([SMALLEST, LARGEST], True),
        ([1e300, LARGEST], True),
        ([1e-3, 1e2], True),
    ],
)
def test_values_can_be_read_off_by_the_labels(
    name: Literal["x", "y"], in_percent: bool, values: list[float], is_log: bool
) -> None:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    found = ValueAxis.of(name, values, is_log=is_log)
    found.set_up(axes, in_percent=in_percent)
    figure.savefig(BytesIO(), format="png")
    axis = axes.xaxis if name == "x" else axes.yaxis
    unit = int(axis.offsetText.get_text().removeprefix("1e") or 0)
    labels = [
        (tick, _number(label.get_text()).scaleb(unit - 2 * in_percent))
        for tick, label in zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
        if label.get_text() and (tick >= 1e-300 or not is_log)
    ]
    (first, low), *_, (last, high) = labels
    for value, place in zip(values, found.place(values), strict=True):
        if is_log:
            share = Decimal((log10(place) - log10(first)) / (log10(last) - log10(first)))
            read = low.log10() + share * (high.log10() - low.log10())
            assert float(read) == pytest.approx(log10(value), abs=1e-6)
        else:
            read = low + Decimal((place - first) / (last - first)) * (high - low)
            assert abs(read - Decimal(value)) < Decimal("1e-6") * Decimal(max(values))


def _number(label: str) -> Decimal:
    """The number of a label, `10^{k}` or digits."""
    power = re.search(r"10\^\{(-?\d+)\}", label)
    return Decimal(1).scaleb(int(power[1])) if power else Decimal(label.replace("\N{MINUS SIGN}", "-"))
