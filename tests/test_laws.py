"""What is predicted of an arm against the run itself, which shares no code with it, and what stands in the way of a prediction."""

from typing import Any

import numpy as np
import pytest

from fedcore import run
from fedcore.errors import NoLawError
from fedcore.laws import law
from tests.documents import QUADRATIC, SYNTHETIC, specification

LEAST_SQUARES = {
    "problem": {"dataset": {"kind": "least_squares", "generate": {"dim": 3, "clients": 4, "samples": 5, "noise": 1.0}, "ridge": 0.1}}
}
APPLIES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, equal weights": {"participation": {"kind": "full", "weighting": "uniform"}},
    "fedavg, steps that fall": {"local": {"lr_schedule": {"kind": "step", "at": [0.25, 0.5, 1.0], "factor": 0.5}}, "rounds": 8},
    "fedavg, a server that goes half the way": {"server": {"kind": "sgd", "lr": 0.5}},
    "fedprox": {"algorithm": {"kind": "fedprox", "mu": 0.7}},
    "fedprox over a proximal solver": {"algorithm": {"kind": "fedprox", "mu": 0.5}, "local": {"optimizer": {"prox_mu": 0.2}}},
    "fednova": {"algorithm": {"kind": "fednova", "server_lr": 0.8}},
    "fednova over a proximal solver": {"algorithm": {"kind": "fednova"}, "local": {"optimizer": {"prox_mu": 0.7}}},
    "fedlin": {"algorithm": {"kind": "fedlin"}, "local": {"lr": 0.2}},
}
STANDS_IN_THE_WAY: dict[str, tuple[dict[str, Any], str]] = {
    "noise": ({"problem": {"dataset": {"gradient_noise": 0.1}}}, "noisy"),
    "some clients": ({"participation": {"kind": "uniform", "clients_per_round": 2}}, "not all clients"),
    "stragglers": ({"systems": {"stragglers": {"fraction": 0.5, "policy": "drop"}}}, "late"),
    "compression": ({"compression": {"uplink": {"kind": "top_k", "k": 1}}}, "compressed"),
    "momentum": ({"local": {"optimizer": {"momentum": 0.9}}}, "momentum"),
    "server momentum": ({"server": {"kind": "momentum", "lr": 1.0}}, "memory"),
    "work that changes": ({"systems": {"steps": {"kind": "uniform", "low": 1, "high": 3}}}, "`uniform`"),
    "decay within a round": ({"local": {"lr_schedule": {"kind": "exponential", "gamma": 0.9}}}, "`exponential`"),
    "another algorithm": ({"algorithm": {"kind": "scaffold"}}, "scaffold"),
    "variance reduction": ({"algorithm": {"kind": "fednova", "variance_reduction": True}}, "with these parameters"),
    "fedlin with other weights": ({"algorithm": {"kind": "fedlin"}, "participation": {"kind": "full", "weighting": "samples"}}, "fedlin"),
}


@pytest.mark.parametrize("case", APPLIES)
@pytest.mark.parametrize("problem", [{}, {**LEAST_SQUARES, "local": {"batch_size": "full"}}], ids=["quadratic", "least squares"])
def test_every_round_of_a_run_is_the_predicted_one(problem: dict[str, Any], case: str) -> None:
    changes = {**problem, **APPLIES[case]}
    base = {**QUADRATIC, "problem": LEAST_SQUARES["problem"]} if problem else QUADRATIC
    spec = specification(base, **{key: value for key, value in changes.items() if key != "problem"})
    found, reports = law(spec, 100), list(run(spec))
    assert found.rounds == [report.round for report in reports]
    for metric in ("objective", "suboptimality", "distance"):
        assert [report.value(metric) for report in reports] == pytest.approx(found.curves[metric].tolist(), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("kind", ["fedavg", "fednova", "fedlin"])
def test_the_levels_are_where_long_runs_come_to_rest(kind: str) -> None:
    spec = specification(QUADRATIC, algorithm={"kind": kind}, rounds=20_000)
    found = law(spec, 50)
    assert found.rate < 1
    assert len(found.rounds) <= 50
    assert (found.rounds[0], found.rounds[-1]) == (1, 20_000)
    assert found.levels["suboptimality"] == pytest.approx(found.curves["suboptimality"][-1], abs=1e-12)


def test_few_of_many_rounds_are_those_of_all() -> None:
    spec = specification(QUADRATIC, rounds=500)
    few, every = law(spec, 20), law(spec, 500)
    chosen = [every.rounds.index(round) for round in few.rounds]
    np.testing.assert_allclose(few.curves["suboptimality"], every.curves["suboptimality"][chosen], rtol=1e-9)


def test_a_step_size_that_is_too_large_runs_away() -> None:
    found = law(specification(QUADRATIC, local={"lr": 5.0}, rounds=5_000), 10)
    assert found.rate > 1
    assert not np.isfinite(found.curves["objective"][-1])


@pytest.mark.parametrize("case", STANDS_IN_THE_WAY)
def test_it_is_said_what_stands_in_the_way(case: str) -> None:
    changes, words = STANDS_IN_THE_WAY[case]
    with pytest.raises(NoLawError, match=words):
        law(specification(QUADRATIC, **changes), 10)


def test_mini_batches_a_flat_problem_and_a_large_one_have_no_law() -> None:
    with pytest.raises(NoLawError, match="mini-batches"):
        law(specification({**QUADRATIC, **LEAST_SQUARES}, local={"batch_size": 2}), 10)
    flat = {"kind": "quadratic", "clients": [{"H": [[0.0]], "e": [0.0]}]}
    with pytest.raises(NoLawError, match="not unique"):
        law(specification({**QUADRATIC, "problem": {"dataset": flat}, "systems": {}}), 10)
    large = {"kind": "quadratic", "generate": {"dim": 1_000, "clients": 10}}
    with pytest.raises(NoLawError, match="1000 x 1000"):
        law(specification({**QUADRATIC, "problem": {"dataset": large}, "systems": {}, "evaluation": {}}), 10)


def test_other_problems_have_no_law() -> None:
    with pytest.raises(NoLawError, match="not for synthetic"):
        law(specification(SYNTHETIC), 10)
