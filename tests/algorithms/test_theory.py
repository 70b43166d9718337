"""Limit cases and fixed points that theory gives for quadratics."""

from typing import Any

import numpy as np
import pytest
import torch

from fedcore import Simulation, run
from fedcore.algorithms.min_norm import min_norm
from fedcore.theory.quadratics import Quadratics, averaging, normalised_averaging, reach
from tests.builders.specifications import QUADRATIC, specification

CLIENTS = QUADRATIC["problem"]["dataset"]["clients"]
H = np.array([client["H"] for client in CLIENTS])
E = np.array([client["e"] for client in CLIENTS])
P = np.array([client["weight"] for client in CLIENTS]) / sum(client["weight"] for client in CLIENTS)
TAU = QUADRATIC["systems"]["steps"]["values"]


def final(**changes: Any) -> np.ndarray:
    *_, last = run(specification(QUADRATIC, **changes))
    return np.array(last.extra["x"])


THEORY = Quadratics(H, E, P)
OPTIMUM = THEORY.optimum()


@pytest.mark.parametrize("other", [{"kind": "fedprox", "mu": 0.0}, {"kind": "fedavgm", "beta": 0.0}])
def test_a_neutral_parameter_leaves_fedavg(other: dict[str, Any]) -> None:
    np.testing.assert_array_equal(final(algorithm=other), final())


def test_fednova_with_equal_steps_is_fedavg() -> None:
    equal = {"systems": {"steps": {"kind": "constant", "value": 4}}}
    np.testing.assert_allclose(final(algorithm={"kind": "fednova"}, **equal), final(**equal), rtol=1e-12)


def test_fednova_with_the_normaliser_of_fedavg_and_its_weights_moves_like_sgd_of_one_client() -> None:
    one = {"participation": {"kind": "trace", "rounds": [[2]] * 8}}
    np.testing.assert_allclose(
        final(
            algorithm={"kind": "fednova", "tau_eff": "normaliser"},
            local={"optimizer": {"momentum": 0.9}},
            **one,
        ),
        final(local={"optimizer": {"momentum": 0.9}}, **one),
        rtol=1e-12,
    )


def test_one_client_is_gradient_descent() -> None:
    x = np.array(QUADRATIC["problem"]["dataset"]["x0"])
    for _ in range(8 * 7):
        x = x - 0.05 * (H[2] @ x - E[2])
    np.testing.assert_allclose(final(participation={"kind": "trace", "rounds": [[2]] * 8}), x, rtol=1e-12)


ALONE: dict[str, tuple[dict[str, Any], float]] = {
    "fedavg": ({"kind": "fedavg"}, 0.05),
    "fedavg variance-reduced": ({"kind": "fedavg", "variance_reduction": True}, 0.05),
    "fednova": ({"kind": "fednova"}, 0.05),
    "fednova variance-reduced": ({"kind": "fednova", "variance_reduction": True}, 0.05),
    "scaffold, option 1": ({"kind": "scaffold", "option": 1}, 0.05),
    "scaffold, option 2": ({"kind": "scaffold", "option": 2}, 0.05),
    "vrlsgd": ({"kind": "vrlsgd"}, 0.05),
    "fedaware": ({"kind": "fedaware", "alpha": 0.0}, 0.05),
    "fedlin": ({"kind": "fedlin"}, 0.05 * 6),
    "fedsvrg": ({"kind": "fedsvrg"}, 0.05 * 6),
}
"""Algorithms that have nothing to correct where there is one client, with the step size that makes
six steps of 0.05 each.
"""


@pytest.mark.parametrize("case", ALONE)
def test_a_population_of_one_is_gradient_descent(case: str) -> None:
    algorithm, lr = ALONE[case]
    x0 = x = np.array([1.0, -2.0, 0.5])
    for _ in range(8 * 6):
        x = x - 0.05 * (H[0] @ x - E[0])
    alone = final(
        problem={"dataset": {"clients": CLIENTS[:1], "x0": x0.tolist()}},
        systems={"steps": {"kind": "constant", "value": 6}},
        local={"lr": lr},
        algorithm=algorithm,
    )
    np.testing.assert_allclose(alone, x, rtol=1e-11)


def test_keeping_every_entry_is_no_compression_of_gradients_either() -> None:
    whole = {"kind": "top_k", "delta": 1}
    fedlin = {"algorithm": {"kind": "fedlin"}}
    np.testing.assert_allclose(
        final(compression={"uplink": whole, "downlink": whole}, **fedlin), final(**fedlin), rtol=1e-13
    )


def test_keeping_every_entry_is_no_compression() -> None:
    whole = {"kind": "top_k", "delta": 1}
    np.testing.assert_allclose(final(compression={"uplink": whole, "downlink": whole}), final(), rtol=1e-13)


def limit(rounds: int = 600, **changes: Any) -> np.ndarray:
    """The iterate after many rounds, or as soon as ten rounds have moved nothing."""
    spec = specification(QUADRATIC, **{**changes, "rounds": rounds, "evaluation": {"every": rounds}})
    simulation, moved = Simulation(spec, seed=0), np.inf
    while not simulation.finished and moved > 1e-15:
        start = simulation.state.server.x.numpy().copy()
        for _ in range(10):
            if not simulation.finished:
                simulation.advance()
        moved = np.abs(simulation.state.server.x.numpy() - start).max()
    return simulation.state.server.x.numpy()


def test_fedavg_reaches_its_surrogate_optimum_and_not_the_true_one() -> None:
    predicted = averaging(THEORY, 0.05, TAU).fixed_point
    np.testing.assert_allclose(limit(), predicted, rtol=0, atol=1e-8)
    assert np.linalg.norm(predicted - OPTIMUM) > 0.1


@pytest.mark.parametrize("kind", ["fedavg", "fednova"])
def test_every_round_is_the_predicted_one(kind: str) -> None:
    """Theory and engine share no code: the map of a round against the rounds of a run."""
    rounds = {"fedavg": averaging, "fednova": normalised_averaging}[kind](THEORY, 0.05, TAU)
    predicted = rounds.iterates(QUADRATIC["problem"]["dataset"]["x0"], 8)[1:]
    reports = list(run(specification(QUADRATIC, algorithm={"kind": kind})))
    np.testing.assert_allclose([report.extra["x"] for report in reports], predicted, rtol=1e-12)
    np.testing.assert_allclose(
        [report.extra["suboptimality"] for report in reports], THEORY.suboptimality(predicted), rtol=1e-10
    )


def test_fedprox_reaches_its_surrogate_optimum() -> None:
    predicted = averaging(THEORY, 0.05, TAU, mu=0.7).fixed_point
    np.testing.assert_allclose(limit(algorithm={"kind": "fedprox", "mu": 0.7}), predicted, rtol=0, atol=1e-8)


def test_fednova_reaches_its_own_fixed_point_which_nears_the_optimum_as_the_step_size_falls() -> None:
    def predicted(eta: float) -> np.ndarray:
        return normalised_averaging(THEORY, eta, TAU).fixed_point

    np.testing.assert_allclose(limit(algorithm={"kind": "fednova"}), predicted(0.05), rtol=0, atol=1e-8)
    gaps = [np.linalg.norm(predicted(eta) - OPTIMUM) for eta in (0.05, 0.005)]
    assert gaps[1] < gaps[0] / 5


UNIFORM_OPTIMUM = np.linalg.solve(H.mean(0), E.mean(0))
EQUAL = {"steps": {"kind": "constant", "value": 3}}
EXACT: dict[str, dict[str, Any]] = {
    "scaffold, option 1": {
        "algorithm": {"kind": "scaffold", "option": 1},
        "local": {"lr": 0.08},
        "systems": EQUAL,
    },
    "scaffold, option 2": {
        "algorithm": {"kind": "scaffold", "option": 2},
        "local": {"lr": 0.08},
        "systems": EQUAL,
    },
    "vrlsgd with equal steps": {"algorithm": {"kind": "vrlsgd"}, "local": {"lr": 0.08}, "systems": EQUAL},
    "feddyn with unequal steps": {"algorithm": {"kind": "feddyn", "alpha": 1.0}, "local": {"lr": 0.2}},
    "feddyn with some clients at a time": {
        "algorithm": {"kind": "feddyn", "alpha": 1.0},
        "local": {"lr": 0.2},
        "participation": {"kind": "uniform", "clients_per_round": 2},
    },
    "fedlin with unequal steps": {"algorithm": {"kind": "fedlin"}, "local": {"lr": 0.4}},
    "fedlin compressed at the server": {
        "algorithm": {"kind": "fedlin"},
        "local": {"lr": 0.2},
        "compression": {"downlink": {"kind": "top_k", "k": 1}},
    },
    "fedsplit with unequal steps": {"algorithm": {"kind": "fedsplit", "s": 0.5}},
    "fedsplit with some clients at a time": {
        "algorithm": {"kind": "fedsplit", "s": 0.5},
        "participation": {"kind": "uniform", "clients_per_round": 2},
    },
}


@pytest.mark.parametrize("case", EXACT)
def test_the_optimum_of_the_uniform_sum_is_reached(case: str) -> None:
    np.testing.assert_allclose(limit(**EXACT[case]), UNIFORM_OPTIMUM, rtol=0, atol=1e-12)


def test_fedmgda_with_no_room_is_fedavg_of_unit_changes() -> None:
    x = np.array(QUADRATIC["problem"]["dataset"]["x0"])
    changes = [reach(H[i], 0.05, tau) @ (E[i] - H[i] @ x) for i, tau in enumerate(TAU)]
    expected = x + sum(p * change / np.linalg.norm(change) for p, change in zip(P, changes, strict=True))
    np.testing.assert_allclose(
        final(algorithm={"kind": "fedmgda", "epsilon": 0.0}, rounds=1), expected, rtol=1e-12
    )


def test_fedaware_of_one_client_without_memory_is_gradient_descent() -> None:
    one = {"participation": {"kind": "trace", "rounds": [[2]] * 8}}
    np.testing.assert_allclose(
        final(algorithm={"kind": "fedaware", "alpha": 0.0}, **one), final(**one), rtol=1e-12
    )


def test_fedaware_comes_to_rest_at_a_point_no_step_from_which_serves_all() -> None:
    """Pareto stationary: the convex hull of the clients' changes holds zero, and server_lr may stay
    as it is.
    """
    x = limit(rounds=150, algorithm={"kind": "fedaware", "alpha": 0.2})
    changes = np.array([reach(H[i], 0.05, tau) @ (E[i] - H[i] @ x) for i, tau in enumerate(TAU)])
    weights = min_norm(
        torch.from_numpy(changes @ changes.T), torch.full((4,), 0.25, dtype=torch.float64)
    ).numpy()
    assert np.linalg.norm(weights @ changes) < 1e-7


def test_the_transformed_objective_has_the_optimum_of_the_weighted_sum() -> None:
    """With one step of gradient descent a round and everyone in the cohort, whatever the p_i."""
    every = {"participation": {"kind": "without_replacement", "clients_per_round": 4, "transformed": True}}
    one = {"systems": {"steps": {"kind": "constant", "value": 1}}}
    np.testing.assert_allclose(final(**every, **one), final(**one), rtol=1e-12)
    assert np.abs(final(**every) - final()).max() > 1e-3


def test_adaptive_mu_falls_while_the_loss_does_and_never_below_zero() -> None:
    spec = specification(QUADRATIC, algorithm={"kind": "fedprox", "mu": 0.15, "adaptive": True}, rounds=14)
    simulation, seen = Simulation(spec, seed=0), []
    while not simulation.finished:
        simulation.advance()
        seen.append(simulation.state.server.adaptive_parameters["mu"])
    np.testing.assert_allclose(seen, [0.15] * 4 + [0.05] * 5 + [0.0] * 5, atol=1e-12)


def test_adaptive_mu_rises_after_a_first_round_in_which_the_loss_rose() -> None:
    """From the optimum FedAvg with unequal steps can only move away."""
    away = {
        "problem": {"dataset": {"x0": OPTIMUM.tolist()}},
        "algorithm": {"kind": "fedprox", "mu": 0.0, "adaptive": True},
    }
    simulation = Simulation(specification(QUADRATIC, **away), seed=0)
    simulation.advance()
    assert simulation.state.server.adaptive_parameters["mu"] == pytest.approx(0.1)


def test_fedsvrg_reaches_the_optimum_of_the_weighted_sum() -> None:
    np.testing.assert_allclose(
        limit(algorithm={"kind": "fedsvrg"}, local={"lr": 0.4}), OPTIMUM, rtol=0, atol=1e-12
    )


def test_fedsvrg_reaches_it_under_gradient_noise_too() -> None:
    """The noise is the same at y and at x, so it cancels."""
    noisy: dict[str, Any] = {"problem": {"dataset": {"gradient_noise": 1.0}}}
    np.testing.assert_allclose(
        limit(algorithm={"kind": "fedsvrg"}, local={"lr": 0.4}, **noisy), OPTIMUM, rtol=0, atol=1e-12
    )


def test_fedlin_with_one_step_is_gradient_descent_on_the_uniform_sum() -> None:
    one = {"systems": {"steps": {"kind": "constant", "value": 1}}}
    uniform = {"participation": {"kind": "full", "weighting": "uniform"}}
    np.testing.assert_allclose(
        final(algorithm={"kind": "fedlin"}, **one), final(**one, **uniform), rtol=1e-12
    )


def test_fedlin_compressed_at_the_clients_stops_at_a_distance_that_falls_with_the_step_size() -> None:
    sparse = {"compression": {"uplink": {"kind": "top_k", "k": 1}}}
    gaps = [
        np.linalg.norm(
            limit(algorithm={"kind": "fedlin"}, local={"lr": lr}, rounds=rounds, **sparse) - UNIFORM_OPTIMUM
        )
        for lr, rounds in ((0.2, 150), (0.05, 400))
    ]
    assert 1e-6 < gaps[1] < gaps[0] / 2


def test_the_first_round_of_vrlsgd_is_fedavg() -> None:
    one = {"rounds": 1, "participation": {"kind": "full", "weighting": "uniform"}}
    np.testing.assert_array_equal(final(algorithm={"kind": "vrlsgd"}, **one), final(**one))


def test_vrlsgd_leaves_the_optimum_when_steps_are_unequal() -> None:
    """FedNova, Fig. 2: the drifts no longer sum to zero."""
    assert np.linalg.norm(limit(algorithm={"kind": "vrlsgd"}, local={"lr": 0.02}) - UNIFORM_OPTIMUM) > 0.1


def test_vrlsgd_with_equal_steps_moves_as_scaffold_does() -> None:
    """Then Delta_i is c_i - c."""
    np.testing.assert_allclose(
        final(algorithm={"kind": "vrlsgd"}, systems=EQUAL),
        final(algorithm={"kind": "scaffold"}, systems=EQUAL),
        rtol=1e-12,
    )


def test_variance_reduced_fednova_reaches_the_true_optimum_with_unequal_steps() -> None:
    np.testing.assert_allclose(
        limit(algorithm={"kind": "fednova", "variance_reduction": True}, local={"lr": 0.05}),
        OPTIMUM,
        rtol=0,
        atol=1e-12,
    )


def test_variance_reduced_fedavg_reaches_the_true_optimum_with_unequal_steps() -> None:
    np.testing.assert_allclose(
        limit(algorithm={"kind": "fedavg", "variance_reduction": True}), OPTIMUM, rtol=0, atol=1e-12
    )


def test_the_gap_of_fedavg_grows_with_local_steps() -> None:
    """Li et al., Theorem 3: |w~ - w*| = Omega((E - 1) eta)."""
    gaps = [
        np.linalg.norm(limit(systems={"steps": {"kind": "constant", "value": steps}}) - OPTIMUM)
        for steps in (1, 2, 8)
    ]
    assert gaps[0] < 1e-10 < gaps[1] < gaps[2]
