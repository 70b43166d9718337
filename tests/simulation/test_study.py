"""Proposals of a study: their distribution, their quality, and that they follow from the results
alone.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from fedcore import RoundReport, run
from fedcore.lazy import LazyModule
from fedcore.simulation.study import TrialResult, best_so_far, first_trials, next_trials, propose
from fedcore.spec.experiment import Arm
from fedcore.spec.search import Study
from fedcore.spec.space import Settings
from tests.builders.specifications import QUADRATIC, merged, specification

stats: Any = LazyModule("scipy.stats")

GP = pytest.param("gp", marks=pytest.mark.nightly)
SAMPLERS = ["random", "tpe", GP, "cmaes"]
SPACE = {
    "local.lr": {"kind": "float", "low": 0.001, "high": 10.0, "log": True},
    "local.steps": {"kind": "int", "low": 1, "high": 9, "step": 2},
}
CHOICE = {"server.lr": {"kind": "choice", "values": [0.5, 1.0, 2.0]}}


ROUNDS = 9


def proposals(search: Study, values: Sequence[float], count: int) -> list[Settings]:
    """Of a study with one metric, none of whose trials was stopped."""
    return propose(search, [TrialResult((value,)) for value in values], count, ROUNDS)


def study(**changes: object) -> Study:
    return Study.model_validate(
        {"kind": "study", "metric": "suboptimality", "trials": 20, "space": SPACE} | changes
    )


def bowl(settings: Settings) -> float:
    """A quadratic in log10(lr) and steps, with its minimum 0 at lr = 0.1 and steps = 5."""
    return (math.log10(settings["local.lr"]) + 1) ** 2 + (settings["local.steps"] - 5) ** 2 / 16


def searched(search: Study, objective: Callable[[Settings], float] = bowl) -> Study:
    """The study once all trials have ended."""
    while count := next_trials(search, ROUNDS):
        values = [objective(settings) for settings in search.proposed]
        search = with_trials(search, proposals(search, values, count))
    return search


def with_trials(search: Study, settings: Sequence[Settings]) -> Study:
    return search.model_copy(update={"proposed": (*search.proposed, *settings)})


def test_random_proposals_are_uniform_in_the_logarithm_over_the_grid_and_over_choices() -> None:
    search = searched(study(sampler="random", trials=300, parallel=300, space=SPACE | CHOICE))
    logs = [math.log10(one["local.lr"]) for one in search.proposed]
    assert stats.kstest(logs, "uniform", args=(-3, 4)).pvalue > 0.01
    for path, values in (("local.steps", [1, 3, 5, 7, 9]), ("server.lr", [0.5, 1.0, 2.0])):
        counts = [sum(one[path] == value for one in search.proposed) for value in values]
        assert sum(counts) == 300
        assert stats.chisquare(counts).pvalue > 0.01


def test_seeds_give_other_proposals() -> None:
    first, second = (searched(study(sampler="random", seed=seed)) for seed in (0, 1))
    assert first.proposed != second.proposed
    assert len({one["local.lr"] for one in first.proposed}) == 20


@pytest.mark.parametrize("sampler", ["tpe", GP, "cmaes"])
def test_samplers_that_learn_come_closer_to_the_optimum_than_random_ones(sampler: str) -> None:
    """In the mean over three seeds; at random, a trial is within 0.02 with probability 0.014."""

    def best(sampler: str, seed: int) -> float:
        found = searched(study(sampler=sampler, seed=seed, trials=32))
        return min(map(bowl, found.proposed))

    learned, drawn = (sum(best(name, seed) for seed in range(3)) / 3 for name in (sampler, "random"))
    assert learned < drawn / 2
    assert learned < 0.02


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_proposals_follow_from_what_is_kept(sampler: str) -> None:
    """As after kill -9: from the JSON of the study and the values, every time anew."""
    whole = searched(study(sampler=sampler))
    known = study(sampler=sampler)
    while count := next_trials(known, ROUNDS):
        kept = Study.model_validate_json(known.model_dump_json())
        settings = proposals(kept, [bowl(one) for one in kept.proposed], count)
        assert settings == proposals(kept, [bowl(one) for one in kept.proposed], count)
        known = with_trials(kept, settings)
    assert known.proposed == whole.proposed


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_trials_without_a_value_count_as_the_worst(sampler: str) -> None:
    def diverging(settings: Settings) -> float:
        return math.nan if settings["local.lr"] > 0.5 else bowl(settings)

    found = searched(study(sampler=sampler, trials=24), diverging)
    learned = sum(one["local.lr"] > 0.5 for one in found.proposed[12:])
    assert learned <= (8 if sampler == "random" else 5)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_study_in_which_every_trial_fails_goes_on(sampler: str) -> None:
    assert len(searched(study(sampler=sampler, trials=12), lambda _: math.nan).proposed) == 12


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_given_trials_come_first_and_are_learned_from_or_left_out(sampler: str) -> None:
    given = [{"local.lr": 0.1, "local.steps": 5}] * 5
    search = study(sampler=sampler, proposed=given, trials=10)
    assert first_trials(search, ROUNDS) == 3
    assert [*searched(search).proposed[:5]] == given
    assert len(searched(search).proposed) == 10


@pytest.mark.parametrize(
    ("trials", "parallel", "batches"), [(10, 4, [4, 4, 2]), (3, 4, [3]), (8, 4, [4, 4]), (2, 1, [1, 1])]
)
def test_trials_come_in_batches(trials: int, parallel: int, batches: list[int]) -> None:
    search, found = study(sampler="random", trials=trials, parallel=parallel), []
    assert first_trials(search, ROUNDS) == batches[0]
    while count := next_trials(search, ROUNDS):
        found.append(count)
        search = with_trials(search, [{}] * count)
    assert found == batches


def test_the_best_so_far_is_monotone_and_passes_over_missing_values() -> None:
    assert best_so_far([3.0, math.nan, 1.0, 2.0], maximise=False) == [3.0, 3.0, 1.0, 1.0]
    assert best_so_far([3.0, math.nan, 1.0, 4.0], maximise=True) == [3.0, 3.0, 3.0, 4.0]
    assert math.isnan(best_so_far([math.nan, 1.0], maximise=False)[0])


LOCAL = merged(
    QUADRATIC,
    {
        "rounds": 3,
        "seeds": [0, 1],
        "search": {
            "kind": "study",
            "metric": "suboptimality",
            "sampler": "cmaes",
            "trials": 6,
            "parallel": 2,
            "space": {
                "local.lr": {"kind": "float", "low": 0.0001, "high": 0.05, "log": True},
                "local.steps": {"kind": "int", "low": 1, "high": 4},
            },
        },
    },
)


def test_the_library_runs_the_trials_that_follow_from_its_results() -> None:
    """Longhand: each batch is proposed from the means over seeds of the last values of the one
    before, and each trial has the rounds of an experiment of its own.
    """
    trials: list[Arm] = []
    spec = specification(LOCAL)
    reports = [*run(spec, proposed=trials.append)]
    assert isinstance(spec.search, Study)
    assert [trial.index for trial in trials] == [0, 1, 2, 3, 4, 5]
    last = {(one.arm, one.seed): suboptimality(one) for one in reports if one.round == 3}
    search = spec.search
    values: list[float] = []
    for first in (0, 2, 4):
        search = with_trials(search, proposals(search, values, 2))
        values += [(last[arm, 0] + last[arm, 1]) / 2 for arm in (first, first + 1)]
    assert [trial.settings for trial in trials] == list(search.proposed)
    alone = [*run(trials[4].spec)]
    assert [measured(one) for one in alone] == [measured(one) for one in reports if one.arm == 4]


def suboptimality(report: RoundReport) -> float:
    value = report.value("suboptimality")
    assert value is not None
    return value


def measured(report: RoundReport) -> tuple[int, int, object]:
    return report.seed, report.round, report.extra


def test_the_best_round_counts_where_that_is_asked_for() -> None:
    """At a rate at which the iterates move away from the optimum, the first round is the best."""
    growing = {"local.lr": {"kind": "float", "low": 0.5, "high": 1.0, "log": False}}
    spec = specification(LOCAL, search={"space": growing, "round": "best", "trials": 4})
    trials: list[Arm] = []
    reports = [*run(spec, proposed=trials.append)]
    assert isinstance(spec.search, Study)
    best = {
        (arm, seed): min(suboptimality(one) for one in reports if (one.arm, one.seed) == (arm, seed))
        for arm in (0, 1)
        for seed in (0, 1)
    }
    values = [(best[arm, 0] + best[arm, 1]) / 2 for arm in (0, 1)]
    search = with_trials(spec.search, [trial.settings for trial in trials[:2]])
    assert proposals(search, values, 2) == [trial.settings for trial in trials[2:]]


def test_the_order_of_results_within_a_batch_changes_nothing() -> None:
    """Values belong to trials, whatever order they came in."""
    search = with_trials(study(), proposals(study(), [], 4))
    arrived = [(arm, bowl(settings)) for arm, settings in enumerate(search.proposed)]
    Random(0).shuffle(arrived)
    values = [value for _, value in sorted(arrived)]
    assert proposals(search, values, 4) == proposals(search, [bowl(one) for one in search.proposed], 4)
