"""FedNova's framework as the paper writes it, any solver under any server: directions from the
coefficients a_i of recorded gradients.
"""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcore import run
from tests.algorithms.test_longhand import ETA, STEPS, X0, P, gradient
from tests.builders.specifications import QUADRATIC, Document, specification

Vector = NDArray[np.float64]

COHORTS = [[0, 2], [1, 2, 3], [0, 0, 3], [3, 1], [0, 1, 2, 3], [2]]


class Client:
    """Local training that keeps count of what each raw gradient counts: y - x = -eta G a."""

    def __init__(self, momentum: float, prox_mu: float, gamma: float) -> None:
        self.rho, self.mu, self.gamma = momentum, prox_mu, gamma

    def train(self, i: int, x: Vector, correction: Vector) -> tuple[Vector, Vector, float]:
        """d_i of the corrected and of the raw gradients, G a / |a|_1, and |a|_1."""
        tau = STEPS[i]
        gradients, y, velocity = [], x.copy(), np.zeros(3)
        a, counted = np.zeros(tau), np.zeros(tau)
        for k in range(tau):
            gradients.append(gradient(i, y))
            velocity = self.rho * velocity + gradients[-1] + correction + self.mu * (y - x)
            counted = self.rho * counted - self.mu * ETA * a
            counted[k] += 1
            y, a = y - ETA * self.gamma**k * velocity, a + self.gamma**k * counted
        raw = a @ np.array(gradients) / a.sum()
        return raw + correction, raw, a.sum()


class Server:
    def __init__(self, kind: str) -> None:
        self.kind, self.m, self.v = kind, np.zeros(3), np.full(3, 1e-4)

    def move(self, d: Vector) -> Vector:
        if self.kind == "momentum":
            self.m = 0.8 * self.m + d
            return 0.3 * self.m
        if self.kind == "yogi":
            self.m = 0.9 * self.m + 0.1 * d
            self.v = self.v - 0.05 * d**2 * np.sign(self.v - d**2)
            return 0.3 * self.m / (np.sqrt(self.v) + 1e-2)
        return 0.3 * d


SERVERS: dict[str, Document] = {
    "sgd": {"kind": "sgd", "lr": 0.3},
    "momentum": {"kind": "momentum", "lr": 0.3, "beta": 0.8},
    "yogi": {"kind": "yogi", "lr": 0.3, "beta1": 0.9, "beta2": 0.95, "tau": 1e-2},
}


def longhand(client: Client, server: Server, tau_eff: str | float, *, reduce: bool) -> Vector:
    x, rows, d = X0, [], np.zeros((4, 3))
    for cohort in COHORTS:
        weights = P[cohort] / P[cohort].sum()
        trained = {i: client.train(i, x, P @ d - d[i] if reduce else np.zeros(3)) for i in cohort}
        match tau_eff:
            case "steps":
                effective = sum(w * STEPS[i] for w, i in zip(weights, cohort, strict=True))
            case "normaliser":
                effective = sum(w * trained[i][2] for w, i in zip(weights, cohort, strict=True))
            case _:
                effective = tau_eff
        x = x + server.move(
            -effective * ETA * sum(w * trained[i][0] for w, i in zip(weights, cohort, strict=True))
        )
        for i in cohort:
            d[i] = trained[i][1]
        rows.append(x)
    return np.array(rows)


@given(
    momentum=st.sampled_from([0.0, 0.9]),
    prox_mu=st.sampled_from([0.0, 0.7]),
    gamma=st.sampled_from([1.0, 0.8]),
    reduce=st.booleans(),
    tau_eff=st.sampled_from(["steps", "normaliser", 3.5]),
    server=st.sampled_from(list(SERVERS)),
    engine=st.sampled_from(["reference", "vectorised"]),
)
@settings(max_examples=40)
def test_any_solver_reduction_normalisation_and_server_compose(
    momentum: float, prox_mu: float, gamma: float, reduce: bool, tau_eff: Any, server: str, engine: str
) -> None:
    spec = specification(
        QUADRATIC,
        algorithm={"kind": "fednova", "variance_reduction": reduce, "tau_eff": tau_eff},
        server=SERVERS[server],
        local={
            "lr": ETA,
            "optimizer": {"momentum": momentum, "prox_mu": prox_mu},
            "lr_schedule": {"kind": "exponential", "gamma": gamma},
        },
        participation={"kind": "trace", "rounds": COHORTS},
        rounds=len(COHORTS),
        execution={"engine": engine},
    )
    iterates = np.array([report.extra["x"] for report in run(spec)])
    expected = longhand(Client(momentum, prox_mu, gamma), Server(server), tau_eff, reduce=reduce)
    np.testing.assert_allclose(iterates, expected, rtol=0, atol=1e-10)
