"""A search without a service: who plays how many rounds, and that those are the rounds it would
play alone.
"""

from collections import Counter
from collections.abc import Iterable

import pytest

from fedcore import ExperimentSpec, RoundReport, run
from fedcore.simulation.halving import Decision, HalvingSchedule, RungResult, Verdict, replay
from fedcore.spec.search import Asha
from tests.builders.specifications import QUADRATIC, merged, specification

HALVING = {"metric": "suboptimality", "min_rounds": 1}
SEARCH = merged(
    QUADRATIC,
    {
        "rounds": 9,
        "seeds": [0, 1],
        "evaluation": {"record_parameters": False},
        "sweep": {"local.lr": [0.001 * 2**step for step in range(9)]},
        "search": HALVING | {"kind": "successive_halving"},
    },
)
"""Nine step sizes, the larger the better but for the last."""


def played(reports: Iterable[RoundReport]) -> Counter[int]:
    """Rounds by arm, over its seeds."""
    return Counter(report.arm for report in reports)


def decided(spec: ExperimentSpec) -> tuple[list[RoundReport], list[Decision]]:
    decisions: list[Decision] = []
    return list(run(spec, decided=decisions.append)), decisions


@pytest.mark.parametrize("kind", ["successive_halving", "asha"])
def test_every_round_that_is_played_is_that_of_the_arm_alone(kind: str) -> None:
    spec = specification(SEARCH, search=HALVING | {"kind": kind})
    reports, decisions = decided(spec)
    alone = {
        (report.arm, report.seed, report.round): report.extra
        for report in run(specification(SEARCH, search=None))
    }
    assert len(set(map(key, reports))) == len(reports) < len(alone)
    assert all(alone[key(report)] == report.extra for report in reports)
    assert {decision.arm for decision in decisions} == set(range(9))
    again, same = decided(spec)
    assert (played(again), same) == (played(reports), decisions)


def key(report: RoundReport) -> tuple[int, int, int]:
    return report.arm, report.seed, report.round


def test_each_rung_keeps_the_best_third_by_the_mean_over_seeds() -> None:
    reports, decisions = decided(specification(SEARCH))
    found = {(report.arm, report.round): report.extra["suboptimality"] for report in reports}
    first = sorted(range(9), key=lambda arm: found[arm, 1])
    second = sorted(first[:3], key=lambda arm: found[arm, 3])
    assert played(reports) == Counter(
        {arm: 18 if arm == second[0] else 6 if arm in second else 2 for arm in range(9)}
    )
    assert [decision.arm for decision in decisions if decision.verdict is Verdict.PROMOTED] == [
        *first[:3],
        second[0],
    ]


def test_decisions_follow_from_the_rows() -> None:
    spec = specification(SEARCH, seeds=[0], search=HALVING | {"kind": "asha"})
    reports, decisions = decided(spec)
    assert isinstance(spec.search, Asha)
    ladder = HalvingSchedule.of(spec.search, 9, 9)
    rungs = {round: rung for rung, round in enumerate(ladder.rungs)}
    arrivals = [
        RungResult(one.arm, rungs[one.round], one.value("suboptimality") or 0.0)
        for one in reports
        if one.round in rungs
    ]
    assert [decision for told in replay(ladder, arrivals) for decision in told] == decisions


def test_an_arm_that_diverges_is_never_promoted() -> None:
    search = HALVING | {"kind": "asha", "min_rounds": 9}
    reports, decisions = decided(
        specification(SEARCH, sweep={"local.lr": [1e6, 0.01, 9e5]}, search=search, rounds=27)
    )
    assert played(reports)[1] == 2 * 27
    assert sum(report.diverged for report in reports) == 4
    assert [decision.verdict for decision in decisions if decision.arm != 1] == [Verdict.STOPPED] * 2


def test_runs_that_stopped_early_stand_at_later_rungs_with_their_last_value() -> None:
    rule = {"metric": "suboptimality", "target": 1e9}
    reports, decisions = decided(specification(SEARCH, early_stopping=rule, seeds=[0]))
    assert played(reports) == Counter(dict.fromkeys(range(9), 1))
    assert Counter((decision.rung, decision.verdict.value) for decision in decisions) == Counter(
        {(0, "promoted"): 3, (0, "stopped"): 6, (1, "promoted"): 1, (1, "stopped"): 2}
    )
