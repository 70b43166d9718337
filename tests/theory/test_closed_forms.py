"""Predictions for an arm agree with the run itself, which shares no code with them, and other
problems are refused with the reason.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcore import run
from fedcore.data.exact import Quadratic
from fedcore.errors import NoClosedFormError
from fedcore.theory.closed_forms import predict
from tests.builders.specifications import QUADRATIC, SYNTHETIC, specification

LEAST_SQUARES = {
    "problem": {
        "dataset": {
            "kind": "least_squares",
            "generate": {"dim": 3, "clients": 4, "samples": 5, "noise": 1.0},
            "ridge": 0.1,
        }
    }
}
APPLIES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, equal weights": {"participation": {"kind": "full", "weighting": "uniform"}},
    "fedavg, steps that fall": {
        "local": {"lr_schedule": {"kind": "step", "at": [0.25, 0.5, 1.0], "factor": 0.5}},
        "rounds": 8,
    },
    "fedavg, a server that goes half the way": {"server": {"kind": "sgd", "lr": 0.5}},
    "fedprox": {"algorithm": {"kind": "fedprox", "mu": 0.7}},
    "fedprox over a proximal solver": {
        "algorithm": {"kind": "fedprox", "mu": 0.5},
        "local": {"optimizer": {"prox_mu": 0.2}},
    },
    "fednova": {"algorithm": {"kind": "fednova", "server_lr": 0.8}},
    "fednova over a proximal solver": {
        "algorithm": {"kind": "fednova"},
        "local": {"optimizer": {"prox_mu": 0.7}},
    },
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
    "decay of all rounds": (
        {
            "local": {
                "lr": None,
                "lr_schedule": {"kind": "inverse_time", "mu": 1, "gamma": 9, "counts": "rounds"},
            }
        },
        "round to round",
    ),
    "decay of all steps": (
        {"local": {"lr": None, "lr_schedule": {"kind": "inverse_time", "mu": 1, "gamma": 9}}},
        "within a round",
    ),
    "decay within a round": (
        {"local": {"lr_schedule": {"kind": "exponential", "gamma": 0.9}}},
        "`exponential`",
    ),
    "another algorithm": ({"algorithm": {"kind": "scaffold"}}, "scaffold"),
    "variance reduction": (
        {"algorithm": {"kind": "fednova", "variance_reduction": True}},
        "with these parameters",
    ),
    "fedlin with other weights": (
        {"algorithm": {"kind": "fedlin"}, "participation": {"kind": "full", "weighting": "samples"}},
        "fedlin",
    ),
}


@pytest.mark.parametrize("case", APPLIES)
@pytest.mark.parametrize(
    "problem", [{}, {**LEAST_SQUARES, "local": {"batch_size": "full"}}], ids=["quadratic", "least squares"]
)
def test_every_round_of_a_run_is_the_predicted_one(problem: dict[str, Any], case: str) -> None:
    changes = {**problem, **APPLIES[case]}
    base = {**QUADRATIC, "problem": LEAST_SQUARES["problem"]} if problem else QUADRATIC
    spec = specification(base, **{key: value for key, value in changes.items() if key != "problem"})
    found, reports = predict(spec, 100), list(run(spec))
    assert found.rounds == [report.round for report in reports]
    for metric in ("objective", "suboptimality", "distance"):
        assert [report.value(metric) for report in reports] == pytest.approx(
            found.curves[metric].tolist(), rel=1e-8, abs=1e-12
        )


@pytest.mark.parametrize("kind", ["fedavg", "fednova", "fedlin"])
def test_the_levels_are_where_long_runs_come_to_rest(kind: str) -> None:
    spec = specification(QUADRATIC, algorithm={"kind": kind}, rounds=20_000)
    found = predict(spec, 50)
    assert found.rate < 1
    assert len(found.rounds) <= 50
    assert (found.rounds[0], found.rounds[-1]) == (1, 20_000)
    assert found.levels["suboptimality"] == pytest.approx(found.curves["suboptimality"][-1], abs=1e-12)


def test_a_step_size_that_would_fall_after_the_last_round_has_no_level() -> None:
    falls = {"kind": "step", "at": [1.0], "factor": 0.1}
    found, constant = (
        predict(specification(QUADRATIC, local={"lr_schedule": falls}), 10),
        predict(specification(QUADRATIC), 10),
    )
    assert (found.rate, found.levels) == (constant.rate, constant.levels)


def test_few_of_many_rounds_are_those_of_all() -> None:
    spec = specification(QUADRATIC, rounds=500)
    few, every = predict(spec, 20), predict(spec, 500)
    chosen = [every.rounds.index(round) for round in few.rounds]
    np.testing.assert_allclose(few.curves["suboptimality"], every.curves["suboptimality"][chosen], rtol=1e-9)


def test_a_step_size_that_is_too_large_runs_away() -> None:
    found = predict(specification(QUADRATIC, local={"lr": 5.0}, rounds=5_000), 10)
    assert found.rate > 1
    assert not np.isfinite(found.curves["objective"][-1])


def conditioned(
    draw: np.random.Generator, dim: int, rank: int, condition: float, basis: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A symmetric matrix of this rank, with eigenvalues between 1/condition and 1, both ends
    taken.
    """
    values = np.zeros(dim)
    values[:rank] = condition ** -np.sort(draw.uniform(size=rank))
    values[: min(rank, 1)], values[max(rank - 1, 1) : rank] = 1, 1 / condition
    return (basis * values) @ basis.T


@st.composite
def experiments(draw: st.DrawFn) -> dict[str, Any]:
    """Full participation on well-posed and ill-posed quadratics: singular clients, and means of
    condition up to 1e12.
    """
    lot = np.random.default_rng(draw(st.integers(0, 2**32)))
    dim, count = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    condition, scale = 10.0 ** draw(st.integers(0, 12)), 10.0 ** draw(st.integers(-3, 3))
    common, least = draw(st.booleans()), draw(st.sampled_from([dim, dim, 0]))
    bases = [np.linalg.qr(lot.normal(size=(dim, dim)))[0] for _ in range(count)]
    hessians = [
        scale
        * conditioned(
            lot, dim, int(lot.integers(least, dim, endpoint=True)), condition, bases[0] if common else basis
        )
        for basis in bases
    ]
    hessians = [(h + h.T) / 2 for h in hessians]
    optima = lot.normal(scale=3, size=(count, dim))
    weights = lot.uniform(1, 4, count)
    kind = draw(st.sampled_from(["fedavg", "fedprox", "fednova", "fedlin"]))
    weighting = (
        "uniform"
        if kind == "fedlin"
        else draw(st.sampled_from([None, "samples", "uniform", "unbiased", "original"]))
    )
    # Relative to the largest curvature: from far below to beyond what gradient descent bears.
    local: dict[str, Any] = {"steps": 1, "lr": draw(st.sampled_from([0.01, 0.3, 0.9, 1.7, 2.2])) / scale}
    if kind != "fedlin":
        local["optimizer"] = {"prox_mu": draw(st.sampled_from([0.0, 1e-9, 0.1])) * scale}
    if draw(st.booleans()):
        local["lr_schedule"] = {"kind": "step", "at": [0.2, 0.55], "factor": 0.3}
    clients = [
        {"H": h.tolist(), "e": (h @ c).tolist(), "weight": weight}
        for h, c, weight in zip(hessians, optima, weights, strict=True)
    ]
    return {
        "name": "drawn",
        "problem": {
            "dataset": {"kind": "quadratic", "clients": clients, "x0": lot.normal(size=dim).tolist()}
        },
        "algorithm": {
            "kind": kind,
            "server_lr": draw(st.sampled_from([0.5, 1.0, 1.3])),
            **({"mu": draw(st.sampled_from([0.0, 0.01, 1.0])) * scale} if kind == "fedprox" else {}),
        },
        "local": local,
        "systems": {"steps": {"kind": "per_client", "values": lot.integers(1, 8, count).tolist()}},
        "participation": {"kind": "full", "weighting": weighting},
        "rounds": 6,
        "execution": {"engine": "reference"},
        "evaluation": {"record_parameters": True},
    }


@given(document=experiments())
@settings(max_examples=200)
def test_a_prediction_is_right_on_problems_however_ill_posed_or_is_declined(document: dict[str, Any]) -> None:
    """Within what float64 allows, of the largest curvature L, the condition number k = L / smallest
    and the largest point S met.

    Gradients are known to eps L S, and the optimum and the point of rest to k times eps S along
    flat directions, which is how far distances may differ. Objectives do not see that: gradients at
    both optima are small, that of the engine, a pseudo-inverse refined once, up to (eps k)^2 L S.
    """
    spec = specification(document)
    dataset = spec.problem.dataset
    assert isinstance(dataset, Quadratic)
    assert dataset.clients is not None
    clients = dataset.clients
    share = np.array([client.weight for client in clients]) / sum(client.weight for client in clients)
    hessians, linear = np.array([client.H for client in clients]), np.array([client.e for client in clients])
    mean = np.tensordot(share, hessians, 1)
    if np.linalg.matrix_rank(mean) < len(mean):
        with pytest.raises(NoClosedFormError, match="not unique"):
            predict(spec, 100)
        return
    found = predict(spec, 100)
    reports = list(run(spec))
    largest = np.linalg.norm(hessians, 2, axis=(1, 2)).max()
    condition = largest / np.linalg.svd(mean, compute_uv=False)[-1]
    points = [np.linalg.solve(mean, share @ linear), dataset.x0, *(report.extra["x"] for report in reports)]
    size = (
        max(float(np.linalg.norm(np.asarray(point, np.float64))) for point in points)
        + found.levels["distance"]
    )
    rounding = np.finfo(np.float64).eps
    value = (rounding + (rounding * condition) ** 2) * largest * size**2
    for metric, allowed in {
        "objective": value,
        "suboptimality": value,
        "distance": rounding * condition * size,
    }.items():
        measured = np.array([report.value(metric) for report in reports], np.float64)
        np.testing.assert_allclose(
            found.curves[metric][: len(measured)], measured, rtol=0, atol=1_000 * allowed, err_msg=metric
        )


def test_clients_with_fewer_samples_than_parameters_have_the_law_of_their_run() -> None:
    generate = {"dim": 20, "clients": 5, "samples": 10, "noise": 0.1}
    document = {
        **QUADRATIC,
        "problem": {"dataset": {"kind": "least_squares", "generate": generate}},
        "systems": {"steps": {"kind": "per_client", "values": [5, 1, 7, 3, 2]}},
        "local": {"lr": 0.2, "steps": 5, "batch_size": "full"},
        "rounds": 200,
    }
    for kind in ("fedavg", "fednova", "fedlin"):
        spec = specification(document, algorithm={"kind": kind})
        found, reports = predict(spec, 200), list(run(spec))
        for metric in ("suboptimality", "distance"):
            measured = np.array([report.value(metric) for report in reports], np.float64)
            np.testing.assert_allclose(found.curves[metric], measured, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("kind", ["fedavg", "fedprox", "fednova", "fedlin"])
def test_a_mean_hessian_without_full_rank_has_no_law(kind: str) -> None:
    """Three clients of four samples each leave at least eight of twenty directions flat."""
    dataset = {"kind": "least_squares", "generate": {"dim": 20, "clients": 3, "samples": 4}}
    spec = specification(
        {**QUADRATIC, "problem": {"dataset": dataset}, "systems": {}},
        algorithm={"kind": kind},
        local={"batch_size": "full"},
    )
    with pytest.raises(NoClosedFormError, match="rank 12 of 20"):
        predict(spec, 10)


def test_a_round_beyond_floating_point_numbers_has_no_law() -> None:
    with pytest.raises(NoClosedFormError, match="floating-point"):
        predict(
            specification(
                QUADRATIC, local={"lr": 1e5}, systems={"steps": {"kind": "constant", "value": 1_000}}
            ),
            10,
        )


@pytest.mark.parametrize("case", STANDS_IN_THE_WAY)
def test_obstacles_to_a_closed_form_are_said(case: str) -> None:
    changes, words = STANDS_IN_THE_WAY[case]
    with pytest.raises(NoClosedFormError, match=words):
        predict(specification(QUADRATIC, **changes), 10)


def test_mini_batches_a_flat_problem_and_a_large_one_have_no_law() -> None:
    with pytest.raises(NoClosedFormError, match="mini-batches"):
        predict(specification({**QUADRATIC, **LEAST_SQUARES}, local={"batch_size": 2}), 10)
    flat = {"kind": "quadratic", "clients": [{"H": [[0.0]], "e": [0.0]}]}
    with pytest.raises(NoClosedFormError, match="not unique"):
        predict(specification({**QUADRATIC, "problem": {"dataset": flat}, "systems": {}}), 10)
    large = {"kind": "quadratic", "generate": {"dim": 1_000, "clients": 10}}
    with pytest.raises(NoClosedFormError, match="1000 x 1000"):
        predict(
            specification({**QUADRATIC, "problem": {"dataset": large}, "systems": {}, "evaluation": {}}), 10
        )


def test_other_problems_have_no_closed_form() -> None:
    with pytest.raises(NoClosedFormError, match="no closed form is available for synthetic"):
        predict(specification(SYNTHETIC), 10)
