"""Rates and floors: against the formulas worked out by hand, against loops, and above what small
problems really do.
"""

from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcore.theory.quadratics import Quadratics, averaging, normalised_averaging
from fedcore.theory.quadratics import fedlin as fedlin_rounds
from tests.builders.specifications import quadratics
from tests.theory import fedavg, fedlin, fednova, fedprox

Floats = NDArray[np.float64]
CLIENTS = quadratics(count=4)
PROBLEM = Quadratics(
    np.array([client["H"] for client in CLIENTS]),
    np.array([client["e"] for client in CLIENTS]),
    np.full(4, 0.25),
)
EIGENVALUES = np.linalg.eigvalsh(PROBLEM.hessians)
L, MU = float(EIGENVALUES.max()), float(EIGENVALUES.min())
TAU = np.array([5, 1, 7, 3])
X0 = np.array([1.0, -2.0, 0.5])
ROUNDS = np.arange(1, 200)


def gradients(x: Floats) -> Floats:
    """[N, D]."""
    return PROBLEM.hessians @ x - PROBLEM.linear


# FedAvg, Li et al.


def test_the_constants_of_fedavgs_bound_by_hand() -> None:
    given = fedavg.FedAvgConstants(
        4.0, 0.5, [0.75, 0.25], [2.0, 4.0], gradient_square=3.0, heterogeneity=0.5, local_steps=5
    )
    assert given.local_error == pytest.approx(0.75**2 * 2 + 0.25**2 * 4 + 6 * 4 * 0.5 + 8 * 16 * 3)
    assert given.offset == 72
    assert fedavg.sampling_error(given, 1, replacement=True) == pytest.approx(4 * 25 * 3)
    assert fedavg.sampling_error(given, 1, replacement=False) == pytest.approx(4 * 25 * 3)
    assert fedavg.sampling_error(given, 2, replacement=False) == 0
    expected = 16 / (72 + 5 * 10) * ((given.local_error + 7) / 0.5 + 2 * 4 * 9)
    assert fedavg.bound(given, [10], start=9.0, sampling=7.0) == pytest.approx([expected])


def test_fedavg_stays_below_its_bound() -> None:
    """Full gradients and participation, E = 4, the step size of the theorem.

    G^2 the largest square met.
    """
    steps, optimum = 4, PROBLEM.optimum()
    offset = max(9 * L / MU, steps)
    x, largest, gaps = X0, 0.0, []
    for round in range(60):
        models = np.tile(x, (4, 1))
        for k in range(steps):
            slope = np.einsum("ide,ie->id", PROBLEM.hessians, models) - PROBLEM.linear
            largest = max(largest, float((slope**2).sum(1).max()))
            models = models - 2 / (MU * (offset + round * steps + k)) * slope
        x = models.mean(0)
        gaps.append(float(PROBLEM.suboptimality(x)))
    own = [-0.5 * e @ np.linalg.solve(h, e) for h, e in zip(PROBLEM.hessians, PROBLEM.linear, strict=True)]
    spread = -0.5 * float(PROBLEM.linear.mean(0) @ optimum) - float(np.mean(own))
    given = fedavg.FedAvgConstants(L, MU, PROBLEM.share, np.zeros(4), largest, spread, steps)
    bounds = fedavg.bound(given, np.arange(1, 61), start=float(((X0 - optimum) ** 2).sum()))
    assert (np.array(gaps) <= bounds).all()
    assert (np.diff(bounds) < 0).all()


def test_rounds_to_an_accuracy_are_fewest_in_between() -> None:
    def order(steps: int) -> float:
        return fedavg.rounds_order(
            fedavg.FedAvgConstants(4.0, 0.5, [0.5, 0.5], [2.0, 2.0], 3.0, 0.5, steps), 2
        )

    assert order(1) == pytest.approx(1.5 * 3 + (1 + 4 * 0.5 + 8 * 3))
    assert order(1) > order(3) < order(20)


# FedNova


def unit_travel(steps: int, rho: float = 0.0, alpha: float = 0.0, gamma: float = 1.0) -> Floats:
    """The weight of each step's gradient in the whole change, from running the solver once per step
    with that gradient alone.
    """
    counts = []
    for only in range(steps):
        y = velocity = 0.0
        for k in range(steps):
            direction = (1.0 if k == only else 0.0) + alpha * y
            velocity = rho * velocity + direction
            y -= gamma**k * velocity
        counts.append(-y)
    return np.array(counts)


def test_accumulation_is_what_each_gradient_counts() -> None:
    np.testing.assert_array_equal(fednova.vanilla(4), unit_travel(4))
    np.testing.assert_allclose(fednova.momentum(6, 0.9), unit_travel(6, rho=0.9), rtol=1e-13)
    np.testing.assert_allclose(fednova.proximal(6, 0.05), unit_travel(6, alpha=0.05), rtol=1e-13)
    np.testing.assert_allclose(fednova.decayed(6, 0.8), unit_travel(6, gamma=0.8), rtol=1e-13)


def test_sums_of_coefficients_are_the_normalisers_of_the_paper() -> None:
    tau, rho, alpha, gamma = 9, 0.9, 0.05, 0.8
    assert fednova.momentum(tau, rho).sum() == pytest.approx(
        (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    )
    assert fednova.proximal(tau, alpha).sum() == pytest.approx((1 - (1 - alpha) ** tau) / alpha)
    assert fednova.decayed(tau, gamma).sum() == pytest.approx((1 - gamma**tau) / (1 - gamma))


SHARE = np.array([0.5, 0.3, 0.2])
VECTORS = [fednova.vanilla(tau) for tau in (2, 4, 9)]


def test_fedavg_weighs_by_effort_and_fednova_by_share() -> None:
    averaged, normalised = fednova.fedavg(SHARE, VECTORS), fednova.fednova(SHARE, VECTORS)
    np.testing.assert_allclose(averaged.weights, [1 / 4, 1.2 / 4, 1.8 / 4])
    assert averaged.tau_eff == normalised.tau_eff == pytest.approx(4.0)
    assert averaged.slowdown == pytest.approx(5 / 4)
    assert fednova.chi_square(SHARE, averaged.weights) == pytest.approx(0.25**2 / 0.25 + 0 + 0.25**2 / 0.45)
    assert fednova.chi_square(SHARE, normalised.weights) == 0
    assert fednova.fednova(SHARE, VECTORS, 8.0).tau_eff == 8.0


def test_the_constants_of_plain_sgd_by_hand() -> None:
    """||a||_1 = ||a||_2^2 = tau: A = m tau_eff sum w^2 / tau, B = sum w (tau - 1), C = 9 * 8."""
    found = fednova.constants(fednova.fednova(SHARE, VECTORS))
    assert found.a == pytest.approx(3 * 4 * (0.25 / 2 + 0.09 / 4 + 0.04 / 9))
    assert found.b == pytest.approx(0.5 * 1 + 0.3 * 3 + 0.2 * 8)
    assert found.c == 72


def test_sampling_adds_the_noise_of_fewer_clients() -> None:
    """The variance of (1/q) sum_j (w_l / p_l) n_l over draws l by p, each n_i with variance
    ||a_i||_2^2 / ||a_i||_1^2 = 1/tau_i.
    """
    method = fednova.fedavg(SHARE, VECTORS)
    draw = np.random.default_rng(0)
    chosen = draw.choice(3, (200_000, 2), p=SHARE)
    noise = draw.normal(size=chosen.shape) / np.sqrt(method.steps[chosen])
    measured = (method.weights[chosen] / SHARE[chosen] * noise).mean(1).var()
    assert fednova.sampled_a(SHARE, method) / method.tau_eff / 2 == pytest.approx(measured, rel=0.02)


def test_momentum_enters_by_its_largest_entry() -> None:
    one = fednova.Framework([fednova.momentum(2, 0.5)], np.ones(1), 2.0)
    found = fednova.constants(one)
    assert found.b == pytest.approx(1.5 * 1 * (1.5**2 + 1) / 2.5)
    assert found.c == pytest.approx(1.5**2 * 2)


def test_the_error_falls_to_its_floor() -> None:
    method = fednova.fedavg(SHARE, VECTORS)
    problem = fednova.Assumptions(smoothness=2.0, variance=0.5, beta_square=1.5, kappa_square=0.7)
    found, eta = fednova.constants(method), 0.01
    error = fednova.optimisation_error(method, problem, 3.0, eta, [10, 1e15])
    floor = 4 * eta * 2 * 0.5 * found.a / 3 + 6 * eta**2 * 4 * 0.5 * found.b + 12 * eta**2 * 4 * 0.7 * found.c
    np.testing.assert_allclose(error, [12 / (eta * 4 * 10) + floor, floor], rtol=1e-9)
    bias = fednova.chi_square(SHARE, method.weights)
    bounded = fednova.gradient_bound(SHARE, method, problem, error)
    np.testing.assert_allclose(bounded, 2 * (bias * 0.5 + 1) * error + 2 * bias * 0.7)
    assert fednova.inconsistency_floor(SHARE, fednova.fednova(SHARE, VECTORS), problem) == 0
    assert fednova.step_size(method, 60) == pytest.approx(0.1)


def test_the_bound_is_declined_beyond_the_step_sizes_it_is_proved_for() -> None:
    """Equation (53): eta L <= 1/2 min(1 / (max_i ||a_i||_1 sqrt(2 beta^2 + 1)), 1 / tau_eff)."""
    method = fednova.fedavg(SHARE, VECTORS)
    problem = fednova.Assumptions(smoothness=2.0, variance=0.5, beta_square=1.5, kappa_square=0.7)
    largest = fednova.largest_step_size(method, problem)
    assert largest == pytest.approx(min(1 / (9 * 2), 1 / method.tau_eff) / 2 / 2)
    far = fednova.Framework(VECTORS, SHARE, tau_eff=100.0)
    assert fednova.largest_step_size(far, problem) == pytest.approx(1 / 400)
    assert np.isfinite(fednova.optimisation_error(method, problem, 3.0, largest, [10])).all()
    with pytest.raises(ValueError, match=r"up to 0\.0138889"):
        fednova.optimisation_error(method, problem, 3.0, 1.01 * largest, [10])


def test_the_strongly_convex_rate_is_of_order_one_over_rounds_with_noise_and_faster_without() -> None:
    method = fednova.fedavg(SHARE, VECTORS)
    noisy = fednova.Assumptions(2.0, 0.5, 1.0, 0.0)
    exact = fednova.Assumptions(2.0, 0.0, 1.0, 0.7)
    late = np.array([1e9, 1e10])
    assert np.divide(*fednova.strongly_convex_order(method, noisy, 0.5, late)) == pytest.approx(10, rel=1e-6)
    assert np.divide(*fednova.strongly_convex_order(method, exact, 0.5, late)) == pytest.approx(100)
    expected = 4 * 0.7 * fednova.constants(method).c / (0.5**3 * 4.0**2 * 25)
    assert fednova.strongly_convex_order(method, exact, 0.5, [5]) == pytest.approx([expected])


@pytest.mark.parametrize("normalised", [False, True])
def test_averaging_on_springs_stays_below_theorem_1_and_2(normalised: bool) -> None:
    """F_i = 1/2 |x - e_i|^2: L = 1, beta^2 = 1 and kappa^2 is the weighted spread of e_i, for any
    weights.
    """
    springs = Quadratics(np.tile(np.eye(3), (4, 1, 1)), PROBLEM.linear, PROBLEM.share)
    vectors, eta = [fednova.vanilla(int(tau)) for tau in TAU], 0.01
    method = (fednova.fednova if normalised else fednova.fedavg)(springs.share, vectors)
    iterates = (normalised_averaging if normalised else averaging)(springs, eta, TAU).iterates(
        X0, len(ROUNDS)
    )
    centre = springs.optimum(method.weights)
    spread = float(method.weights @ ((springs.linear - centre) ** 2).sum(1))
    problem = fednova.Assumptions(1.0, 0.0, 1.0, spread)
    surrogate = np.minimum.accumulate(((iterates - centre) ** 2).sum(1))[:-1]
    true = np.minimum.accumulate(((iterates - springs.optimum()) ** 2).sum(1))[:-1]
    error = fednova.optimisation_error(method, problem, 0.5 * float(((X0 - centre) ** 2).sum()), eta, ROUNDS)
    assert (surrogate <= error).all()
    assert (true <= fednova.gradient_bound(springs.share, method, problem, error)).all()


# FedProx


def test_rho_term_by_term() -> None:
    given = fedprox.ProxAssumptions(smoothness=2.0, mu=50.0, gamma=0.1, clients_per_round=25, concavity=1.0)
    b, bar = 1.3, 49.0
    expected = (
        1 / 50 - 0.1 * b / 50 - b * 1.1 * sqrt(2) / (bar * 5) - 2 * b * 1.1 / (bar * 50)
        - 2 * 1.1**2 * b**2 / (2 * bar**2) - 2 * b**2 * 1.1**2 / (bar**2 * 25) * (2 * sqrt(50) + 2)
    )  # fmt: skip
    assert fedprox.rho(given, b) == pytest.approx(expected, rel=1e-13)


def test_rho_needs_little_inexactness_and_many_clients() -> None:
    """Remark 5: gamma B < 1 and B / sqrt(K) < 1."""

    def sign(gamma: float, clients: int) -> bool:
        return fedprox.rho(fedprox.ProxAssumptions(1.0, 1e6, gamma, clients), 2.0) > 0

    assert sign(0.1, 400)
    assert not sign(0.6, 400)
    assert not sign(0.1, 4)


def test_corollary_7() -> None:
    """Convex clients solved exactly, 1 << B, many of them: mu = 6 L B^2 makes rho about 1 / (24 L
    B^2).
    """
    b, smoothness = 100.0, 3.0
    found = fedprox.rho(fedprox.ProxAssumptions(smoothness, 6 * smoothness * b**2, 0.0, int((2 * b) ** 2)), b)
    assert found * 24 * smoothness * b**2 == pytest.approx(1, abs=0.2)


def test_the_proximal_term_must_outweigh_concavity() -> None:
    with pytest.raises(ValueError, match="must exceed"):
        fedprox.rho(fedprox.ProxAssumptions(1.0, 0.5, 0.0, 10, concavity=0.5), 1.0)


def test_equal_clients_descend_by_at_least_rho() -> None:
    """f = L/2 w^2 and an exact local solution w mu / (L + mu): B = 1, gamma = 0."""
    for mu in (5.0, 20.0, 100.0):
        rho = fedprox.rho(fedprox.ProxAssumptions(2.0, mu, 0.0, 10_000), 1.0)
        descent = 1 - (mu / (2 + mu)) ** 2
        assert descent >= rho * 4


def test_variance_bounds_dissimilarity_and_the_mean_gradient_falls_as_one_over_rounds() -> None:
    assert fedprox.dissimilarity_of(3.0, 1.0) == 2
    np.testing.assert_allclose(fedprox.mean_gradient(0.1, 2.0, [1, 10]), [20, 2])


# FedLin


def test_fedlin_stays_below_theorem_1() -> None:
    iterates = fedlin_rounds(PROBLEM, 1 / (6 * L), TAU).iterates(X0, 199)
    gaps = PROBLEM.suboptimality(iterates)
    assert (gaps[1:] <= fedlin.strongly_convex_bound(L / MU, gaps[0], ROUNDS) + 1e-15).all()


def test_fedlin_stays_below_theorem_2() -> None:
    iterates = fedlin_rounds(PROBLEM, 1 / (10 * L), TAU).iterates(X0, 199)
    squares = ((iterates - PROBLEM.optimum()) ** 2).sum(1)
    means = np.cumsum(iterates, 0)[:-1] / ROUNDS[:, None]
    bounds = [fedlin.convex_bound(L, squares[0], [t], squares[t])[0] for t in ROUNDS]
    assert (PROBLEM.suboptimality(means) <= np.array(bounds) + 1e-15).all()


def test_fedlin_stays_below_theorem_3() -> None:
    iterates = fedlin_rounds(PROBLEM, 1 / (26 * L), TAU).iterates(X0, 199)
    smallest = np.minimum.accumulate([float((gradients(x).mean(0) ** 2).sum()) for x in iterates])[:-1]
    gaps = PROBLEM.suboptimality(iterates)
    assert (smallest <= fedlin.gradient_bound(L, 1.0, ROUNDS) * (gaps[0] - gaps[1:]) + 1e-15).all()


def test_the_noisy_bound_sums_up_its_recursion() -> None:
    eta, mu, variance, bound = 0.05, 0.4, 2.0, 9.0
    for round in range(1, 30):
        bound = (1 - eta * mu / 2) * bound + 25 * eta**2 * variance
        assert fedlin.noisy_bound(eta, mu, variance, 9.0, [round]) == pytest.approx([bound], rel=1e-12)
    assert fedlin.noisy_bound(eta, mu, variance, 9.0, [1e6]) == pytest.approx(
        [fedlin.noise_floor(eta, mu, variance)]
    )
