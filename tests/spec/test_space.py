"""Rejected values of a study, and the field that the error names."""

from typing import Any

import pytest
from pydantic import ValidationError

from fedcore.errors import SpecificationError
from fedq.planning.estimates import memory_needed, plan
from tests.builders.specifications import SYNTHETIC, merged, specification

LR = {"kind": "float", "low": 0.001, "high": 1.0, "log": True}
STUDY = {
    "kind": "study",
    "metric": "test_accuracy",
    "trials": 10,
    "parallel": 3,
    "space": {"local.lr": LR},
}
STUDIED = merged(SYNTHETIC, {"search": STUDY})

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a sweep beside it": ({"sweep": {"local.lr": [0.1, 0.2]}}, "/sweep", "search.space"),
    "a block that is not there": (
        {"search": {"space": {"local.lr.rate": LR}}},
        "/search/space/local.lr.rate",
        "not a block",
    ),
    "a field that is not there": (
        {"search": {"space": {"local.momentums": LR}}},
        "/search/space/local.momentums",
        "change the range",
    ),
    "an end that the field does not take": (
        {"search": {"space": {"local.lr": {"kind": "float", "low": -1.0, "high": 1.0, "log": False}}}},
        "/search/space/local.lr",
        "-1.0 is invalid",
    ),
    "a choice that the field does not take": (
        {"search": {"space": {"local.lr": None, "local.batch_size": {"kind": "choice", "values": [5, 0]}}}},
        "/search/space/local.batch_size",
        "0 is invalid",
    ),
    "another problem in each trial": (
        {"search": {"space": {"problem.partition.alpha": LR}}},
        "/search/space/problem.partition.alpha",
        "one problem",
    ),
    "rounds that differ": (
        {"search": {"space": {"rounds": {"kind": "int", "low": 1, "high": 9}}}},
        "/search/space/rounds",
        "same rounds",
    ),
    "kinds": (
        {"search": {"space": {"algorithm.kind": {"kind": "choice", "values": ["fedavg", "fedprox"]}}}},
        "/search/space/algorithm.kind",
        "sweep over it",
    ),
    "a metric that is not measured": (
        {"search": {"metric": "b_dissimilarity", "mode": "min"}},
        "/search/metric",
        "add it",
    ),
    "CMA-ES over one field": ({"search": {"sampler": "cmaes"}}, "/search/space", "at least two"),
    "CMA-ES over choices": (
        {
            "search": {
                "sampler": "cmaes",
                "space": {"local.batch_size": {"kind": "choice", "values": [5, 10]}},
            }
        },
        "/search/space/local.batch_size",
        "tpe",
    ),
    "more trials given than there are": (
        {"search": {"trials": 1, "proposed": [{"local.lr": 0.1}, {"local.lr": 0.2}]}},
        "/search/proposed",
        "more than `trials`",
    ),
    "a given trial outside of the range": (
        {"search": {"proposed": [{"local.lr": 2.0}]}},
        "/search/proposed/0/local.lr",
        "not in its range",
    ),
    "NSGA-II with one metric": ({"search": {"sampler": "nsga2"}}, "/search/sampler", "several metrics"),
    "CMA-ES with several": (
        {"search": {"sampler": "cmaes", "further_metrics": [{"metric": "bytes_up", "mode": "min"}]}},
        "/search/sampler",
        "one metric",
    ),
    "a metric twice": (
        {"search": {"further_metrics": [{"metric": "test_accuracy"}]}},
        "/search/further_metrics/0/metric",
        "twice",
    ),
    "the best rounds of several metrics": (
        {"search": {"round": "best", "further_metrics": [{"metric": "test_loss"}]}},
        "/search/round",
        "final",
    ),
    "a pruner for several metrics": (
        {
            "search": {
                "further_metrics": [{"metric": "test_loss"}],
                "pruner": {"kind": "median", "min_rounds": 1},
            }
        },
        "/search/pruner",
        "one metric",
    ),
    "a pruner without a round to stop at": (
        {"search": {"pruner": {"kind": "asha", "min_rounds": 4}}, "rounds": 9},
        "/search/pruner/min_rounds",
        "at most 3",
    ),
    "rungs at which nothing is evaluated": (
        {"search": {"pruner": {"kind": "median", "min_rounds": 3}}, "rounds": 10, "evaluation": {"every": 2}},
        "/search/pruner/min_rounds",
        "use 4",
    ),
    "batches of which none is left": (
        {"search": {"pruner": {"kind": "successive_halving", "min_rounds": 1}}, "rounds": 9},
        "/search/parallel",
        "at least 9",
    ),
    "a part of a bracket": (
        {"search": {"pruner": {"kind": "hyperband", "min_rounds": 1}}, "rounds": 9},
        "/search/trials",
        "use 9 or 14",
    ),
    "a given trial without a field": ({"search": {"proposed": [{}]}}, "/search/proposed/0", "local.lr"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_study_that_does_not_fit_is_refused_at_its_field(case: str) -> None:
    changes, pointer, reason = REFUSED[case]
    with pytest.raises(SpecificationError, match=reason) as refusal:
        specification(STUDIED, **changes)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize(
    ("searched", "reason"),
    [
        ({"kind": "float", "low": 1.0, "high": 1.0}, "less than `high`"),
        ({"kind": "float", "low": 0.0, "high": 1.0, "log": True}, "greater than 0"),
        ({"kind": "int", "low": 1, "high": 6, "step": 2}, "use 5"),
        ({"kind": "int", "low": 1, "high": 8, "step": 7, "log": True}, "either `log` or `step`"),
        ({"kind": "choice", "values": [1, 1]}, "unique"),
        ({"kind": "choice", "values": [1]}, "at least 2"),
    ],
)
def test_a_range_that_is_none_is_refused(searched: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        specification(STUDIED, search={"space": {"local.lr": None, "local.epochs": searched}})


def test_a_choice_tells_true_from_one() -> None:
    spec = specification(STUDIED, search={"space": {"local.epochs": {"kind": "choice", "values": [1, 2]}}})
    assert spec.search is not None
    assert spec.search.kind == "study"
    found = [value for value in (1, 2, True, 3) if spec.search.space["local.epochs"].contains(value)]
    assert found == [1, 2]
    assert type(found[0]) is int


def test_trials_have_the_settings_that_are_given_and_the_others_none_yet() -> None:
    spec = specification(STUDIED, search={"proposed": [{"local.lr": 0.12345678}]})
    first, second, *_ = arms = spec.arms()
    assert len(arms) == spec.arm_count == 10
    assert first.name == "trial 0: lr=0.1235"
    assert first.settings == {"local.lr": 0.12345678}
    assert first.spec == specification(SYNTHETIC, local={"lr": 0.12345678})
    assert (second.name, second.settings) == ("trial 1", {})
    assert second.spec == specification(SYNTHETIC)


def test_a_plan_counts_trials_and_runs_and_rounds() -> None:
    spec = specification(STUDIED, seeds=[0, 1], rounds=7)
    found = plan(spec)
    assert (found.runs, found.rounds) == (20, 140)
    assert [arm.runs for arm in found.arms] == [20]
    assert found.search is not None
    assert found.search.parallel == 3
    assert [(stage.arms, stage.until) for stage in found.search.stretches] == [(10, 7)]


def test_memory_is_that_of_the_largest_trial() -> None:
    spec = specification(
        STUDIED,
        search={"space": {"local.optimizer.momentum": {"kind": "float", "low": 0.0, "high": 0.9}}},
        local={"optimizer": {"kind": "sgd"}},
    )
    [alone] = memory_needed(specification(SYNTHETIC))
    assert memory_needed(spec) == [max(memory_needed(spec))] * 10
    assert memory_needed(spec)[0] >= alone
