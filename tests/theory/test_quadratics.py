"""Closed forms on quadratics against local loops written out, limits, and the numbers of the
papers' examples.
"""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcore.theory.quadratics import (
    Quadratics,
    averaging,
    averaging_limit,
    fedlin,
    normalised_averaging,
    reach,
)
from tests.builders.specifications import quadratics
from tests.theory.fedlin import proposition_1, proposition_2

Floats = NDArray[np.float64]
CLIENTS = quadratics(count=4)
WEIGHTS = np.array([client["weight"] for client in CLIENTS])
PROBLEM = Quadratics(
    np.array([client["H"] for client in CLIENTS]),
    np.array([client["e"] for client in CLIENTS]),
    WEIGHTS / WEIGHTS.sum(),
)
UNIFORM = Quadratics(PROBLEM.hessians, PROBLEM.linear, np.full(4, 0.25))
TAU = np.array([5, 1, 7, 3])
ETA = 0.05
X0 = np.array([1.0, -2.0, 0.5])
FIG_1 = Quadratics(np.array([[[1.0]], [[2.0]]]), np.array([[3.0], [100.0]]), np.array([0.5, 0.5]))
"""FedLin's Fig. 1: 1/2 (x - 3)^2 and (x - 50)^2."""


def descended(problem: Quadratics, client: int, x: Floats, eta: float, steps: int, mu: float = 0.0) -> Floats:
    y = x
    for _ in range(steps):
        y = y - eta * (problem.hessians[client] @ y - problem.linear[client] + mu * (y - x))
    return y


def test_reach_is_how_far_local_steps_go() -> None:
    for client, steps in enumerate(TAU):
        k = reach(PROBLEM.hessians[client], ETA, int(steps), 0.7)
        gradient = PROBLEM.hessians[client] @ X0 - PROBLEM.linear[client]
        np.testing.assert_allclose(
            X0 - k @ gradient, descended(PROBLEM, client, X0, ETA, steps, 0.7), rtol=1e-13
        )


def test_reach_along_flat_directions_is_a_straight_line() -> None:
    np.testing.assert_allclose(
        reach(np.diag([0.0, 2.0]), 0.1, 3), np.diag([0.3, (1 - 0.8**3) / 2]), rtol=1e-14
    )


@pytest.mark.parametrize(
    "curvature", [-1e-17, 1e-300, 5e-324, 1e-16, 1e-12, 1e-6, 0.49, 0.5, 0.51, 0.99, 1.0, 1.01, 1.99, 2.5]
)
@pytest.mark.parametrize("eta", [0.1, 1.0])
def test_reach_is_exact_at_any_curvature(curvature: float, eta: float) -> None:
    """Against eta sum_l (1 - eta c)^l in rational arithmetic."""
    exact = Fraction(eta) * sum((1 - Fraction(eta) * Fraction(curvature)) ** step for step in range(7))
    np.testing.assert_allclose(reach(np.array([[curvature]]), eta, 7), [[float(exact)]], rtol=1e-14)


def test_reach_of_one_step_is_the_step_size() -> None:
    np.testing.assert_allclose(reach(PROBLEM.hessians[0], ETA, 1, 0.3), ETA * np.eye(3), atol=1e-15)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_rounds_of_averaging_follow_the_local_loops(mu: float) -> None:
    rounds = averaging(PROBLEM, ETA, TAU, mu).iterates(X0, 6)
    x = X0
    for predicted in rounds[1:]:
        x = sum(p * descended(PROBLEM, i, x, ETA, TAU[i], mu) for i, p in enumerate(PROBLEM.share))
        np.testing.assert_allclose(predicted, x, rtol=1e-12)
    np.testing.assert_allclose(rounds[0], X0, rtol=1e-14)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_rounds_of_normalised_averaging_follow_the_local_loops(mu: float) -> None:
    effort = np.array([sum((1 - ETA * mu) ** k for k in range(tau)) for tau in TAU])
    x = X0
    for predicted in normalised_averaging(PROBLEM, ETA, TAU, mu).iterates(X0, 6)[1:]:
        changes = [(descended(PROBLEM, i, x, ETA, TAU[i], mu) - x) / effort[i] for i in range(4)]
        x = x + (PROBLEM.share @ TAU) * (PROBLEM.share @ changes)
        np.testing.assert_allclose(predicted, x, rtol=1e-12)


def test_rounds_of_fedlin_follow_algorithm_1() -> None:
    x = X0
    for predicted in fedlin(PROBLEM, 0.2, TAU).iterates(X0, 6)[1:]:
        gradients = PROBLEM.hessians @ x - PROBLEM.linear
        models = []
        for i, tau in enumerate(TAU):
            y = x
            for _ in range(tau):
                y = y - 0.2 / tau * (
                    PROBLEM.hessians[i] @ y - PROBLEM.linear[i] - gradients[i] + gradients.mean(0)
                )
            models.append(y)
        x = np.mean(models, 0)
        np.testing.assert_allclose(predicted, x, rtol=1e-12)


def test_a_fixed_point_does_not_move_and_is_reached_at_the_rate_of_its_map() -> None:
    for rounds in (
        averaging(PROBLEM, ETA, TAU),
        normalised_averaging(PROBLEM, ETA, TAU),
        fedlin(PROBLEM, 0.2, TAU),
    ):
        np.testing.assert_allclose(
            rounds.iterates(rounds.fixed_point, 3), np.tile(rounds.fixed_point, (4, 1)), rtol=1e-14
        )
        gaps = np.linalg.norm(rounds.iterates(X0, 90) - rounds.fixed_point, axis=1)
        assert gaps[-1] / gaps[-2] == pytest.approx(rounds.rate, rel=1e-3)
        assert rounds.rate < 1


def test_lemma_1_for_springs_weighs_by_how_far_each_client_gets() -> None:
    """FedNova, equations (32) and (33): weights 1 - (1 - eta)^tau_i, and tau_i as eta -> 0."""
    springs = Quadratics(
        np.tile(np.eye(2), (4, 1, 1)), np.array([[1.0, 0], [0, 4], [-2, 1], [3, 3]]), np.full(4, 0.25)
    )
    far = 1 - (1 - ETA) ** TAU
    np.testing.assert_allclose(
        averaging(springs, ETA, TAU).fixed_point, far @ springs.linear / far.sum(), rtol=1e-13
    )
    np.testing.assert_allclose(averaging_limit(springs, TAU), TAU @ springs.linear / TAU.sum(), rtol=1e-14)


def test_averaging_tends_to_its_limit_as_the_step_size_falls() -> None:
    gaps = [
        np.linalg.norm(averaging(PROBLEM, eta, TAU).fixed_point - averaging_limit(PROBLEM, TAU))
        for eta in (1e-2, 1e-3, 1e-4)
    ]
    np.testing.assert_allclose(np.divide(gaps[1:], gaps[:-1]), 0.1, rtol=0.1)


def test_normalised_averaging_tends_to_the_optimum_as_the_step_size_falls() -> None:
    gaps = [
        np.linalg.norm(normalised_averaging(PROBLEM, eta, TAU).fixed_point - PROBLEM.optimum())
        for eta in (1e-2, 1e-3, 1e-4)
    ]
    np.testing.assert_allclose(np.divide(gaps[1:], gaps[:-1]), 0.1, rtol=0.1)


def test_the_bias_of_averaging_vanishes_with_one_step_and_grows_with_step_size_and_steps() -> None:
    def bias(eta: float, steps: int) -> float:
        return float(np.linalg.norm(averaging(PROBLEM, eta, steps).fixed_point - PROBLEM.optimum()))

    assert bias(ETA, 1) < 1e-13
    assert bias(ETA, 2) == pytest.approx(2 * bias(ETA / 2, 2), rel=0.1)
    assert bias(ETA, 3) == pytest.approx(2 * bias(ETA, 2), rel=0.1)


def test_fedlin_rests_at_the_optimum_of_the_uniform_sum() -> None:
    np.testing.assert_allclose(fedlin(PROBLEM, 0.2, TAU).fixed_point, UNIFORM.optimum(), rtol=1e-13)


def test_the_optimum_has_no_gradient_and_suboptimality_is_the_difference_of_objectives() -> None:
    def objective(x: Floats) -> float:
        values = [0.5 * x @ h @ x - e @ x for h, e in zip(PROBLEM.hessians, PROBLEM.linear, strict=True)]
        return float(PROBLEM.share @ values)

    optimum = PROBLEM.optimum()
    np.testing.assert_allclose(
        np.tensordot(PROBLEM.share, PROBLEM.hessians @ optimum - PROBLEM.linear, 1), 0, atol=1e-14
    )
    np.testing.assert_allclose(
        PROBLEM.suboptimality(np.array([X0, optimum])), [objective(X0) - objective(optimum), 0], atol=1e-13
    )


def test_the_optimum_of_a_mean_without_full_rank_is_declined() -> None:
    """Of rank 2 of 3 by rounding only: elimination finds a pivot of 1e-16 and would solve on."""
    rows = np.random.default_rng(0).normal(size=(2, 3))
    flat = Quadratics((rows.T @ rows)[None], (rows.T @ [1.0, 2.0])[None], np.ones(1))
    for sought in (
        flat.optimum,
        lambda: averaging(flat, ETA, 3),
        lambda: normalised_averaging(flat, ETA, 3),
        lambda: fedlin(flat, ETA, 3),
    ):
        with pytest.raises(np.linalg.LinAlgError, match="rank 2 of 3"):
            sought()
    with pytest.raises(np.linalg.LinAlgError, match="rank 2 of 3"):
        proposition_1(flat, ETA, 3)


def test_the_propositions_need_no_client_of_full_rank() -> None:
    """Two clients who know one coordinate each."""
    halves = Quadratics(
        np.array([np.diag([1.0, 0]), np.diag([0, 2.0])]), np.array([[3.0, 0], [0, 8.0]]), np.array([0.5, 0.5])
    )
    np.testing.assert_allclose(proposition_1(halves, 0.1, 5), [3, 4], rtol=1e-14)
    np.testing.assert_allclose(proposition_2(halves, 0.1, [5, 2]), [3, 4], rtol=1e-14)


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_proposition_1_is_the_fixed_point_of_fedprox(beta: float) -> None:
    np.testing.assert_allclose(
        proposition_1(UNIFORM, ETA, 6, beta), averaging(UNIFORM, ETA, 6, beta).fixed_point, rtol=1e-12
    )


def test_proposition_2_is_the_fixed_point_of_fednova() -> None:
    np.testing.assert_allclose(
        proposition_2(UNIFORM, ETA, TAU), normalised_averaging(UNIFORM, ETA, TAU).fixed_point, rtol=1e-12
    )


def test_the_example_of_fedlins_figure_1() -> None:
    """x* = 103/3 and f* = 368.17; FedProx rests at (3 + 50 s) / (1 + s), s = S_2 / S_1."""
    np.testing.assert_allclose(FIG_1.optimum(), [103 / 3], rtol=1e-14)
    x = FIG_1.optimum()[0]
    assert 0.5 * (0.5 * (x - 3) ** 2 + (x - 50) ** 2) == pytest.approx(368.1667, abs=1e-4)
    eta, beta = 0.05, 5.0
    first, second = (a * sum((1 - eta * (a + beta)) ** k for k in range(50)) for a in (1, 2))
    np.testing.assert_allclose(
        proposition_1(FIG_1, eta, 50, beta), [(3 * first + 50 * second) / (first + second)], rtol=1e-13
    )
    assert abs(proposition_2(FIG_1, eta, [50, 30])[0] - x) > 1
    assert fedlin(FIG_1, 1 / 12, [50, 30]).fixed_point == pytest.approx([x])
