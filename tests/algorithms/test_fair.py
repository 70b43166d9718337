"""q-FedAvg and AFL: their papers' loops in NumPy, limit cases, and the projection onto the simplex."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedcore.algorithms.fair import FairStep, WorstMixture, onto_simplex
from fedcore.core import Cohort
from fedcore.lazy import LazyModule
from fedcore.simulation.local_run import run
from tests.algorithms.test_longhand import COHORTS, ETA, H, Vector, gradient, over, sgd, trajectory
from tests.builders.specifications import QUADRATIC, Document, merged, specification

optimize: Any = LazyModule("scipy.optimize")

LIFTED: Document = merged(
    QUADRATIC,
    {
        "problem": {
            "dataset": {
                "clients": [
                    {**client, "c": 20.0 + client["c"]}
                    for client in QUADRATIC["problem"]["dataset"]["clients"]
                ]
            }
        }
    },
)
"""The quadratics, raised so that no loss is negative."""
CLIENTS = LIFTED["problem"]["dataset"]["clients"]


def loss(i: int, x: Vector) -> float:
    return float(x @ H[i] @ x / 2 - np.array(CLIENTS[i]["e"]) @ x + CLIENTS[i]["c"])


def iterates(algorithm: Document, cohorts: list[list[int]], **changes: Any) -> Vector:
    spec = specification(
        LIFTED,
        algorithm=algorithm,
        **{"local": {"lr": ETA}, **changes},
        participation={"kind": "trace", "rounds": cohorts},
    )
    return np.array([report.extra["x"] for report in run(spec)])


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qfedavg_is_the_papers_algorithm_2(q: float) -> None:
    """Delta w = L (x - y), Delta = F^q Delta w, h = q F^(q-1) |Delta w|^2 + L F^q, x - sum Delta / sum h."""
    smoothness = 1 / ETA

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        steps = {i: smoothness * (x - sgd(i, x)) for i in cohort}
        h = {
            i: q * loss(i, x) ** (q - 1) * steps[i] @ steps[i] + smoothness * loss(i, x) ** q for i in cohort
        }
        weights = dict(zip(cohort, over(cohort), strict=True))
        up = sum(weights[i] * loss(i, x) ** q * steps[i] for i in cohort)
        return x - up / sum(weights[i] * h[i] for i in cohort)

    found = iterates({"kind": "qfedavg", "q": q, "smoothness": smoothness}, COHORTS)
    np.testing.assert_allclose(found, trajectory(round_of, COHORTS), rtol=0, atol=1e-12)


def test_qfedavg_with_q_zero_is_fedavg() -> None:
    found = iterates({"kind": "qfedavg", "q": 0.0}, COHORTS)
    np.testing.assert_allclose(found, iterates({"kind": "fedavg"}, COHORTS), rtol=0, atol=1e-14)


def cohort(losses: list[float], weights: list[float] | None = None) -> Cohort:
    ones = torch.ones(len(losses), dtype=torch.float64)
    given = ones / len(ones) if weights is None else torch.tensor(weights, dtype=torch.float64)
    clients = torch.arange(len(losses))
    return Cohort(
        clients, given, ones / 4, ones / 4, 4, ones, ones, losses=torch.tensor(losses, dtype=torch.float64)
    )


def test_a_higher_loss_counts_more_under_qfedavg() -> None:
    """For changes of equal length the coefficients are as F^q."""
    coefficients = FairStep(2.0, 1.0).combine(torch.eye(3).double(), cohort([1.0, 2.0, 3.0]), {}).coefficients
    np.testing.assert_allclose(coefficients / coefficients[0], [1.0, 4.0, 9.0], rtol=1e-12)


def test_a_large_q_overflows_no_type() -> None:
    deltas = torch.randn(3, 5)
    given = cohort([1e4, 2e4, 3e4])
    single = Cohort(
        given.clients, given.weights.float(), given.share, given.objective, 4, given.steps, given.normaliser,
        losses=torch.tensor([1e4, 2e4, 3e4]),
    )  # fmt: skip
    assert FairStep(50.0, 10.0).combine(deltas, single, {}).direction.isfinite().all()


def test_the_sum_of_the_weights_counts_once() -> None:
    deltas = torch.randn(3, 5, dtype=torch.float64)
    whole = FairStep(1.0, 5.0).combine(deltas, cohort([1.0, 2.0, 3.0], [0.2, 0.3, 0.5]), {}).direction
    third = FairStep(1.0, 5.0).combine(deltas, cohort([1.0, 2.0, 3.0], [0.2 / 3, 0.1, 0.5 / 3]), {}).direction
    np.testing.assert_allclose(third, whole / 3, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_is_the_nearest_point_of_the_simplex(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=5)
    found = optimize.minimize(
        lambda point: ((point - values) ** 2).sum(),
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda point: point.sum() - 1},
        tol=1e-14,
    ).x
    np.testing.assert_allclose(onto_simplex(torch.from_numpy(values)), found, atol=1e-6)


def test_a_point_of_the_simplex_is_its_own_projection() -> None:
    point = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    np.testing.assert_allclose(onto_simplex(point), point, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e17])
def test_the_projection_of_large_values_is_a_point_of_the_simplex(dtype: torch.dtype, scale: float) -> None:
    far = onto_simplex(torch.tensor([20 * scale, 10 * scale, 3 * scale], dtype=dtype))
    assert far.tolist() == [1.0, 0.0, 0.0]
    near = onto_simplex(torch.tensor([1e6, 1e6 - 0.5, 3.0], dtype=dtype))
    np.testing.assert_allclose(near, [0.75, 0.25, 0.0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mixture_follows_large_losses(dtype: torch.dtype) -> None:
    """Two clients with losses of 2e10 share it, whatever the precision."""
    losses = [2e10, 2e10, 1e10, 3e9]
    given = replace(cohort(losses), losses=torch.tensor(losses, dtype=dtype))
    state = {"mixture": torch.zeros(0, dtype=dtype)}
    found = WorstMixture(0.1).combine(torch.zeros(4, 5, dtype=dtype), given, state).aggregator_state
    assert found["mixture"].dtype == dtype
    np.testing.assert_allclose(found["mixture"], [0.5, 0.5, 0.0, 0.0], rtol=0, atol=1e-9)


def test_afl_is_the_papers_algorithm() -> None:
    everyone, mixture = [[0, 1, 2, 3]] * 8, np.full(4, 0.25)

    def round_of(x: Vector, members: list[int]) -> Vector:
        nonlocal mixture
        deltas = np.array([sgd(i, x) - x for i in members])
        moved = x + mixture @ deltas
        raised = mixture + 0.01 * np.array([loss(i, x) for i in members])
        # By bisection of the shift that makes the positive parts sum to 1.
        low, high = raised.min() - 1, raised.max()
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if np.maximum(raised - middle, 0).sum() > 1 else (low, middle)
        mixture = np.maximum(raised - low, 0)
        return moved

    found = iterates({"kind": "afl", "mixture_lr": 0.01}, everyone)
    np.testing.assert_allclose(found, trajectory(round_of, everyone), rtol=0, atol=1e-12)
    assert np.abs(mixture - 0.25).max() > 0.05, "the mixture should have moved"


def test_afl_with_a_still_mixture_is_fedavg_with_equal_weights() -> None:
    found = iterates({"kind": "afl", "mixture_lr": 0.0}, COHORTS)
    plain = specification(
        LIFTED, local={"lr": ETA}, participation={"kind": "trace", "rounds": COHORTS, "weighting": "uniform"}
    )
    np.testing.assert_allclose(found, [report.extra["x"] for report in run(plain)], rtol=0, atol=1e-13)


def test_afl_lowers_the_worst_clients_loss() -> None:
    """After many single steps, against FedAvg: the minimax point has the lowest greatest loss."""
    long: Document = {"rounds": 300, "systems": {"steps": None}}
    everyone = [[0, 1, 2, 3]] * 300
    ends = {
        kind: iterates(
            {"kind": kind, **options}, everyone, **merged(long, {"local": {"lr": ETA, "steps": 1}})
        )[-1]
        for kind, options in (("fedavg", {}), ("afl", {"mixture_lr": 0.005}))
    }
    worst = {kind: max(loss(i, x) for i in range(4)) for kind, x in ends.items()}
    assert worst["afl"] < worst["fedavg"] - 0.1


def test_clients_outside_the_cohort_keep_their_place_in_the_mixture() -> None:
    """Those inside rise, and the projection lowers all alike."""
    state = {"mixture": torch.tensor([0.25, 0.25, 0.25, 0.25], dtype=torch.float64)}
    given = cohort([1.0, 3.0])
    after = WorstMixture(0.1).combine(torch.zeros(2, 5).double(), given, state).aggregator_state["mixture"]
    np.testing.assert_allclose(after, [0.25, 0.45, 0.15, 0.15], rtol=1e-12)


def test_each_client_sends_its_loss() -> None:
    """One number more than under FedAvg."""
    fair, plain = (
        next(iter(run(specification(LIFTED, algorithm={"kind": kind})))) for kind in ("qfedavg", "fedavg")
    )
    assert fair.bytes_up - plain.bytes_up == 4 * 8
    assert fair.bytes_down == plain.bytes_down


def test_the_fixed_point_of_equal_clients_is_their_common_minimiser() -> None:
    """Whatever q, if all clients are alike there is nothing to be fair about."""
    alike = merged(
        LIFTED, {"problem": {"dataset": {"clients": [CLIENTS[0]] * 3}}, "systems": {"steps": None}}
    )
    spec = specification(alike, algorithm={"kind": "qfedavg", "q": 2.0, "smoothness": 20.0}, rounds=300)
    end = [report.extra["x"] for report in run(spec)][-1]
    np.testing.assert_allclose(gradient(0, np.array(end)), 0.0, atol=1e-6)
