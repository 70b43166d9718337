"""Pruners of a study: their rules, and that nothing but the values decides."""

import math
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from fedcore import run
from fedcore.lazy import LazyModule
from fedcore.simulation.halving import Decision, HalvingSchedule, RungResult, Verdict, replay
from fedcore.simulation.pruning import RungValues, decide, expected, rungs
from fedcore.simulation.study import TrialResult, propose
from fedcore.spec.experiment import Arm
from fedcore.spec.search import Batch, Study, list_batches
from tests.builders.specifications import QUADRATIC, merged, specification
from tests.simulation.test_study import suboptimality

optuna: Any = LazyModule("optuna")

SPACE = {"local.lr": {"kind": "float", "low": 0.0001, "high": 0.05, "log": True}}


def study(pruner: Mapping[str, Any], **changes: Any) -> Study:
    block = {"kind": "study", "metric": "test_loss", "trials": 27, "parallel": 9, "space": SPACE}
    return Study.model_validate(block | {"pruner": pruner} | changes)


def promoted(decisions: list[Decision]) -> set[int]:
    return {one.arm for one in decisions if one.verdict is Verdict.PROMOTED}


def test_brackets_of_hyperband_are_those_of_the_paper() -> None:
    """Li et al. 2018, Table 1: R = 81 and eta = 3, the trials n_i and rounds r_i of each bracket."""
    search = study({"kind": "hyperband", "min_rounds": 1}, trials=81 + 34 + 15 + 8 + 5)
    ends = rungs(search, 81)
    found = []
    for batch in list_batches(search, 81):
        sizes = [batch.last - batch.first]
        values: dict[tuple[int, int], float] = {}
        for rung in range(batch.rung, len(ends) - 1):
            going = range(batch.first, batch.first + sizes[-1])
            values |= {(trial, rung): float(trial) for trial in going}
            sizes.append(len(promoted(decide(search, 81, batch, rung, values))))
        found.append(list(zip(sizes, ends[batch.rung :], strict=True)))
    assert found == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]
    stages = expected(search, 81)
    assert stages is not None
    assert stages[-1] == (81, 1 + 1 + 1 + 2 + 5)
    assert stages[0] == (1, 143)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_successive_halving_decides_as_over_the_arms_of_a_sweep(mode: str) -> None:
    search = study({"kind": "successive_halving", "min_rounds": 1}, mode=mode)
    draw = Random(0)
    values = {(trial, 0): draw.random() for trial in range(18)} | {(11, 0): math.nan}
    ladder = HalvingSchedule(9, (1, 3), 3, mode == "max", asynchronous=False)
    told = replay(ladder, [RungResult(trial, 0, values[9 + trial, 0]) for trial in range(9)])
    wanted = [one._replace(arm=9 + one.arm) for one in told[-1]]
    assert decide(search, 9, Batch(9, 18, 0), 0, values) == wanted


def test_asha_compares_with_all_that_came_to_the_rung_before() -> None:
    search = study({"kind": "asha", "min_rounds": 1}, parallel=2)
    values = {(0, 0): 1.0, (1, 0): 2.0, (2, 0): 3.0, (3, 0): 0.5}
    assert promoted(decide(search, 9, Batch(0, 2, 0), 0, values)) == {0}  # the best of two
    later = decide(search, 9, Batch(2, 4, 0), 0, values)  # the best of four
    assert later == [
        Decision(3, 0, Verdict.PROMOTED, 1, 4, 1),
        Decision(2, 0, Verdict.STOPPED, 4, 4, 1),
    ]
    worthless = decide(search, 9, Batch(0, 2, 0), 0, {(0, 0): math.nan, (1, 0): math.nan})
    assert promoted(worthless) == set()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_median_rule_is_that_of_optuna(mode: str) -> None:
    search = study({"kind": "median", "min_rounds": 2, "startup_trials": 4}, mode=mode, parallel=5, trials=40)
    draw, stopped = Random(1), 0
    values: dict[tuple[int, int], float] = {}
    other = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    ends = rungs(search, 9)
    assert ends == (2, 4, 6, 8, 9)
    for batch in list_batches(search, 9):
        going = set(range(batch.first, batch.last))
        for rung in range(len(ends)):
            values |= {(trial, rung): draw.random() for trial in going}
            if rung == len(ends) - 1:
                break
            pruned = {
                trial
                for trial in going
                if pruner.prune(other, frozen(values, trial, ends, optuna.trial.TrialState.RUNNING))
            }
            assert promoted(decide(search, 9, batch, rung, values)) == going - pruned
            going -= pruned
            stopped += len(pruned)
        for trial in sorted(going):
            other.add_trial(frozen(values, trial, ends, optuna.trial.TrialState.COMPLETE))
    assert 10 < stopped < 38


def frozen(values: RungValues, trial: int, ends: tuple[int, ...], state: Any) -> Any:
    """The trial as optuna stores it, in a state of `optuna.trial.TrialState`."""
    steps = {ends[rung]: value for (one, rung), value in values.items() if one == trial}
    final = steps[ends[-1]] if state is optuna.trial.TrialState.COMPLETE else None
    return optuna.trial.create_trial(state=state, value=final, intermediate_values=steps)


def test_no_trial_without_a_value_goes_on_under_the_median_rule() -> None:
    search = study({"kind": "median", "min_rounds": 2, "startup_trials": 4})
    assert promoted(decide(search, 9, Batch(0, 2, 0), 0, {(0, 0): math.nan, (1, 0): 1.0})) == {1}


PRUNED = merged(
    QUADRATIC,
    {
        "rounds": 9,
        "seeds": [0, 1],
        "search": {
            "kind": "study",
            "metric": "suboptimality",
            "trials": 18,
            "parallel": 9,
            "space": SPACE,
            "pruner": {"kind": "successive_halving", "min_rounds": 1},
        },
    },
)


def test_the_library_stops_the_trials_that_follow_from_its_results() -> None:
    """Longhand, for batches of nine: three come to round 3, one to round 9, by the means over seeds;
    the second batch is proposed from the last values of the first.
    """
    trials: list[Arm] = []
    decisions: list[Decision] = []
    spec = specification(PRUNED)
    reports = [*run(spec, proposed=trials.append, decided=decisions.append)]
    values: dict[tuple[int, int], float] = {}
    for trial in range(18):
        for round in {one.round for one in reports if one.arm == trial}:
            both = [suboptimality(one) for one in reports if (one.arm, one.round) == (trial, round)]
            assert len(both) == 2
            values[trial, round] = sum(both) / 2
    for first in (0, 9):
        going = sorted(range(first, first + 9), key=lambda trial: values[trial, 1])
        for end, count in ((3, 3), (9, 1)):
            assert {trial for trial, round in values if round == end and first <= trial < first + 9} == set(
                going[:count]
            )
            going = sorted(going[:count], key=lambda trial: values[trial, end])
    assert len(decisions) == 2 * (9 + 3)
    assert isinstance(spec.search, Study)
    ends = [max(round for one, round in values if one == trial) for trial in range(9)]
    results = [
        TrialResult((values[trial, end],), None if end == 9 else end) for trial, end in enumerate(ends)
    ]
    search = spec.search.model_copy(update={"proposed": tuple(arm.settings for arm in trials[:9])})
    assert propose(search, results, 9, 9) == [arm.settings for arm in trials[9:]]
    alone = [suboptimality(one) for one in run(trials[4].spec) if one.seed == 0]
    own = [suboptimality(one) for one in reports if (one.arm, one.seed) == (4, 0)]
    assert own == alone[: len(own)]  # bit for bit, although it waited at rungs
