"""Drift and inexactness of local work: against values worked out by hand, and in limit cases."""

import numpy as np
import pytest

from tests.builders.specifications import Document
from tests.measures.test_contribution import INEXACTNESS, first


def test_drift_is_the_mean_square_of_what_training_changed() -> None:
    """y_i - x = (1 - (1 - eta)^tau) (c_i - x)."""
    moved = (1 - 0.9 ** np.array([2, 6])) * [4, -2]
    assert first()["client_drift"] == pytest.approx((moved**2).mean(), rel=1e-14)


def test_drift_is_of_what_clients_computed_not_of_what_was_sent() -> None:
    compressed = first(compression={"uplink": {"kind": "top_k", "ratio": 0.5, "error_feedback": False}})
    assert compressed["client_drift"] == first()["client_drift"]


def test_inexactness_falls_with_each_step() -> None:
    """On 1/2 (x - c)^2 a step multiplies the gradient by 1 - eta, so gamma_i = 0.9^tau_i."""
    gammas = 0.9 ** np.array([2, 6])
    measured = first()
    assert [measured[name] for name in INEXACTNESS] == pytest.approx([gammas.max(), gammas.mean()], rel=1e-13)


@pytest.mark.parametrize(
    "prox", [{"algorithm": {"kind": "fedprox", "mu": 2.0}}, {"local": {"optimizer": {"prox_mu": 2.0}}}]
)
def test_inexactness_is_that_of_the_proximal_subproblem(prox: Document) -> None:
    """h(y) = 1/2 (y - c)^2 + (y - x)^2 has curvature 3, so gamma_i = (1 - 3 eta)^tau_i."""
    gammas = 0.7 ** np.array([2, 6])
    measured = first(**prox)
    assert [measured[name] for name in INEXACTNESS] == pytest.approx([gammas.max(), gammas.mean()], rel=1e-12)


def test_inexactness_above_one_says_that_a_client_diverges() -> None:
    assert first(local={"lr": 3.0})["gamma_inexactness"] == pytest.approx(2.0**6, rel=1e-13)


def test_a_client_that_starts_at_its_optimum_and_stays_is_exact() -> None:
    """gamma of 0/0 is 0; the other's stays 0.9^2."""
    clients = [{"H": [[1.0]], "e": [4.0]}, {"H": [[1.0]], "e": [0.0]}]
    measured = first(problem={"dataset": {"clients": clients}})
    assert [measured[name] for name in INEXACTNESS] == pytest.approx([0.81, 0.405], rel=1e-13)


def test_an_exactly_solved_subproblem_of_fedsplit_has_no_inexactness() -> None:
    """One step of size 1 / (1 + 1/s) on 1/2 (y - e)^2 + 1/(2s) (y - x)^2 ends at its minimiser."""
    measured = first(
        algorithm={"kind": "fedsplit", "s": 1.0}, local={"lr": 0.5, "steps": 1}, systems={"steps": None}
    )
    assert measured["gamma_inexactness"] == pytest.approx(0, abs=1e-14)
    # The minimisers are (e_i + x) / 2 with x = 0: changes of 2 and -1.
    assert measured["client_drift"] == pytest.approx((4 + 1) / 2, rel=1e-14)
