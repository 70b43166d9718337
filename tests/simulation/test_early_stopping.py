"""Early stopping: the rule longhand, and a run that ends by it wherever it is interrupted."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcore import RoundReport, Simulation, run
from fedcore.simulation.early_stopping import EarlyStoppingState
from fedcore.simulation.report import StopReason
from fedcore.spec.search import EarlyStopping
from tests.builders.specifications import QUADRATIC, specification

NAN = math.nan


def ends(values: list[float | None], **rule: Any) -> tuple[int, StopReason] | None:
    """After which of these rounds a run ends, and why."""
    watch, parsed = EarlyStoppingState(), EarlyStopping.model_validate({"metric": "test_loss", **rule})
    for round, value in enumerate(values, 1):
        watch = watch.update(parsed, round, value)
        if watch.reason:
            return round, watch.reason
    return None


@pytest.mark.parametrize(
    ("values", "rule", "end"),
    [
        ([3, 2, 2, 2, 1], {"patience": 2}, (4, "patience")),
        ([3, 2, 2, 1, 1, 1], {"patience": 2}, (6, "patience")),
        ([3, 2.5, 2.1, 1.9], {"patience": 2, "min_delta": 1.0}, (3, "patience")),
        ([3, 2.5, 1.9, 1.8, 1.7], {"patience": 2, "min_delta": 1.0}, (5, "patience")),
        ([3, 4, 5, 6, 1], {"patience": 1, "min_rounds": 4}, (4, "patience")),
        ([3, None, None, 3, None, 3], {"patience": 2}, (6, "patience")),
        ([NAN, NAN, 3], {"patience": 2}, (2, "patience")),
        ([3, 0.5, 0.1], {"target": 0.5}, (2, "target")),
        ([0.1, 0.9, 0.95], {"target": 0.9, "mode": "max", "patience": 1}, (2, "target")),
        ([0.1, 0.5, 0.4], {"mode": "max", "patience": 1}, (3, "patience")),
        ([3, 2, 1], {"patience": 1, "target": 0.0}, None),
    ],
)
def test_a_run_ends_when_patience_is_over_or_its_target_reached(
    values: list[float | None], rule: dict[str, Any], end: tuple[int, str] | None
) -> None:
    assert ends(values, **rule) == end


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 6).map(float)), max_size=30),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(0, 10),
)
def test_patience_longhand(
    values: list[float | None], patience: int, min_delta: int, min_rounds: int
) -> None:
    def exhausted(round: int) -> bool:
        seen = [value for value in values[:round] if value is not None]
        bests: list[int] = []
        best = math.inf
        for index, value in enumerate(seen):
            if value < best - min_delta or not bests:
                best = value
                bests.append(index)
        return bool(seen) and values[round - 1] is not None and len(seen) - 1 - bests[-1] >= patience

    expected = next((round for round in range(max(min_rounds, 1), len(values) + 1) if exhausted(round)), None)
    found = ends(values, patience=patience, min_delta=min_delta, min_rounds=min_rounds)
    assert (found and found[0]) == expected


STOPPING = {
    "evaluation": {"every": 3},
    "early_stopping": {"metric": "suboptimality", "patience": 2},
    "rounds": 60,
}


def test_a_run_that_is_resumed_ends_in_the_same_round_in_the_same_bits() -> None:
    spec = specification(QUADRATIC, **STOPPING)
    whole = Simulation(spec, 0)
    reports: list[RoundReport] = []
    while not whole.finished:
        reports.append(whole.advance())
    assert (reports[-1].stopped, whole.facts.stopped) == (StopReason.PATIENCE, StopReason.PATIENCE)
    assert whole.round < 60
    assert whole.round % 3 == 0
    assert not any(report.stopped for report in reports[:-1])
    for cut in range(1, whole.round + 1, 4):
        first, second = Simulation(spec, 0), Simulation(spec, 0)
        for _ in range(cut):
            first.advance()
        second.restore(first.checkpoint())
        while not second.finished:
            second.advance()
        assert (second.round, second.facts.stopped) == (whole.round, whole.facts.stopped)
        torch.testing.assert_close(second.model(), whole.model(), rtol=0, atol=0)


def test_a_run_that_is_not_stopped_computes_what_it_does_without_the_rule() -> None:
    plain = [report.extra for report in run(specification(QUADRATIC))]
    ruled = [
        report.extra
        for report in run(specification(QUADRATIC, early_stopping={"metric": "objective", "target": -1e9}))
    ]
    assert plain == ruled
