"""Every algorithm against its paper's loop, written out in float64 NumPy on heterogeneous
quadratics with unequal steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedcore import ExperimentSpec, Simulation, run
from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import ClientContext, Need, Rule
from fedcore.data.plan import mini_batches
from fedcore.random import generator
from fedcore.systems.cohorts import draw
from fedcore.systems.work import Work
from tests.builders.specifications import QUADRATIC, Document, specification

Vector = NDArray[np.float64]

ETA, ROUNDS, STEPS = 0.05, 8, [5, 1, 7, 3]
CLIENTS = QUADRATIC["problem"]["dataset"]["clients"]
H = [np.array(client["H"]) for client in CLIENTS]
E = [np.array(client["e"]) for client in CLIENTS]
P = np.array([client["weight"] for client in CLIENTS]) / sum(client["weight"] for client in CLIENTS)
X0 = np.array(QUADRATIC["problem"]["dataset"]["x0"])
FULL = [[0, 1, 2, 3]] * 8
COHORTS = [[0, 2], [1, 2, 3], [0], [3, 1], [0, 1, 2, 3], [2], [0, 3], [1, 2]]


def gradient(i: int, y: Vector) -> Vector:
    return H[i] @ y - E[i]


def sgd(
    i: int, x: Vector, correction: Vector | float = 0.0, mu: float = 0.0, rho: float = 0.0, scale: float = 1.0
) -> Vector:
    y, v = x.copy(), np.zeros_like(x)
    for _ in range(STEPS[i]):
        v = rho * v + scale * gradient(i, y) + correction + mu * (y - x)
        y = y - ETA * v
    return y


def trajectory(round_of: Callable[[Vector, list[int]], Vector], cohorts: list[list[int]]) -> Vector:
    x, rows = X0, []
    for cohort in cohorts:
        x = round_of(x, cohort)
        rows.append(x)
    return np.array(rows)


def over(cohort: list[int]) -> Vector:
    return P[cohort] / P[cohort].sum()


def fedavg(x: Vector, cohort: list[int]) -> Vector:
    return sum(w * sgd(i, x) for w, i in zip(over(cohort), cohort, strict=True))


def fedprox(x: Vector, cohort: list[int]) -> Vector:
    return sum(w * sgd(i, x, mu=0.7) for w, i in zip(over(cohort), cohort, strict=True))


def objective(x: Vector) -> float:
    return sum(
        p * (x @ h @ x / 2 - e @ x + client["c"]) for p, h, e, client in zip(P, H, E, CLIENTS, strict=True)
    )


def adaptive_fedprox(mu: float) -> Callable[[Vector, list[int]], Vector]:
    losses: list[float] = []
    falls = 0

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal mu, falls
        if not losses:
            losses.append(objective(x))
        x = sum(w * sgd(i, x, mu=mu) for w, i in zip(over(cohort), cohort, strict=True))
        losses.append(objective(x))
        falls = falls + 1 if losses[-1] < losses[-2] else 0
        if losses[-1] > losses[-2]:
            mu += 0.1
        if falls == 5:
            mu, falls = max(0.0, mu - 0.1), 0
        return x

    return round_of


def fednova(normaliser: Callable[[int], float], **solver: float) -> Callable[[Vector, list[int]], Vector]:
    def round_of(x: Vector, cohort: list[int]) -> Vector:
        weights = over(cohort)
        tau_eff = sum(w * STEPS[i] for w, i in zip(weights, cohort, strict=True))
        d = {i: (x - sgd(i, x, **solver)) / (ETA * normaliser(STEPS[i])) for i in cohort}
        return x - tau_eff * sum(w * ETA * d[i] for w, i in zip(weights, cohort, strict=True))

    return round_of


def proximal_norm(mu: float) -> Callable[[int], float]:
    return lambda tau: (1 - (1 - ETA * mu) ** tau) / (ETA * mu)


def momentum_norm(rho: float) -> Callable[[int], float]:
    return lambda tau: (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def scaffold(option: int) -> Callable[[Vector, list[int]], Vector]:
    c, controls = np.zeros(3), np.zeros((4, 3))

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal c
        models, fresh = {}, {}
        for i in cohort:
            models[i] = sgd(i, x, c - controls[i])
            fresh[i] = gradient(i, x) if option == 1 else controls[i] - c + (x - models[i]) / (STEPS[i] * ETA)
        c = c + sum(fresh[i] - controls[i] for i in cohort) / 4
        for i in cohort:
            controls[i] = fresh[i]
        return x + np.mean([models[i] - x for i in cohort], axis=0)

    return round_of


def vrlsgd() -> Callable[[Vector, list[int]], Vector]:
    drift = np.zeros((4, 3))

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        models = {i: sgd(i, x, -drift[i]) for i in cohort}
        mean = np.mean(list(models.values()), axis=0)
        for i in cohort:
            drift[i] += (mean - models[i]) / (STEPS[i] * ETA)
        return mean

    return round_of


def feddyn(alpha: float) -> Callable[[Vector, list[int]], Vector]:
    g, h = np.zeros((4, 3)), np.zeros(3)

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal h
        theta = {k: sgd(k, x, -g[k], mu=alpha) for k in cohort}
        for k in cohort:
            g[k] -= alpha * (theta[k] - x)
        h = h - alpha / 4 * sum(theta[k] - x for k in cohort)
        return np.mean(list(theta.values()), axis=0) - h / alpha

    return round_of


def feddc(alpha: float, *, steps: Callable[[int], float]) -> Callable[[Vector, list[int]], Vector]:
    drift, c, controls = np.zeros((4, 3)), np.zeros(3), np.zeros((4, 3))

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal c
        models, fresh = {}, {}
        for i in cohort:
            y = x.copy()
            for _ in range(STEPS[i]):
                y = y - ETA * (gradient(i, y) + alpha * (drift[i] + y - x) - controls[i] + c)
            drift[i] += y - x
            models[i] = y
            fresh[i] = controls[i] - c + (x - y) / (ETA * steps(STEPS[i]))
        c = c + sum(fresh[i] - controls[i] for i in cohort) / 4
        for i in cohort:
            controls[i] = fresh[i]
        return np.mean(list(models.values()), axis=0) + drift.mean(0)

    return round_of


def fedsplit(s: float) -> Callable[[Vector, list[int]], Vector]:
    z = np.array([X0] * 4)

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        for i in cohort:
            u = x.copy()
            for _ in range(STEPS[i]):
                u = u - ETA * (gradient(i, u) + (u - (2 * x - z[i])) / s)
            z[i] += 2 * (u - x)
        return z.mean(0)

    return round_of


def top(entries: int | None, vector: Vector) -> Vector:
    """Its largest entries, all of them where `entries` is None."""
    kept = np.argsort(-np.abs(vector), kind="stable")[:entries]
    return np.where(np.isin(np.arange(len(vector)), kept), vector, 0.0)


def fedlin(
    initial: str = "exact",
    up: int | None = None,
    down: int | None = None,
    *,
    feedback: bool = True,
    weighted: bool = False,
) -> Callable[[Vector, list[int]], Vector]:
    rho, e = np.zeros((4, 3)), np.zeros(3)
    g: Vector | None = None

    def exchange(x: Vector, cohort: list[int], weights: Vector) -> Vector:
        nonlocal e
        h = {}
        for i in cohort:
            message = gradient(i, x) + (rho[i] if feedback else 0)
            h[i] = top(up, message)
            rho[i] = message - h[i]
        mean = sum(w * h[i] for w, i in zip(weights, cohort, strict=True)) + (e if feedback else 0)
        e = mean - top(down, mean)
        return top(down, mean)

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal g
        weights = over(cohort) if weighted else np.full(len(cohort), 1 / len(cohort))
        if g is None and initial != "compressed":
            g = (
                sum(w * gradient(i, x) for w, i in zip(weights, cohort, strict=True))
                if initial == "exact"
                else np.zeros(3)
            )
        else:
            g = exchange(x, cohort, weights)
        result = np.zeros(3)
        for w, i in zip(weights, cohort, strict=True):
            y = x.copy()
            for _ in range(STEPS[i]):
                y = y - ETA / STEPS[i] * (gradient(i, y) - gradient(i, x) + g)
            result += w * y
        return result

    return round_of


def feddane(mu: float) -> Callable[[Vector, list[int]], Vector]:
    def round_of(x: Vector, cohort: list[int]) -> Vector:
        g = np.mean([gradient(i, x) for i in cohort], 0)
        return np.mean([sgd(i, x, correction=g - gradient(i, x), mu=mu) for i in cohort], 0)

    return round_of


def fedcm(alpha: float, rho: float = 0.0) -> Callable[[Vector, list[int]], Vector]:
    """With the momentum rho of the local optimiser, ||a_i||_1 = sum_k (1 + rho + ... + rho^k)."""
    moved = np.zeros(3)

    def client(i: int, x: Vector) -> Vector:
        length = sum(rho**m for k in range(STEPS[i]) for m in range(k + 1))
        return sgd(i, x, scale=alpha, correction=-(1 - alpha) * moved / (ETA * length), rho=rho)

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal moved
        moved = np.mean([client(i, x) for i in cohort], 0) - x
        return x + moved

    return round_of


def shortest(vectors: list[Vector], centre: Vector, epsilon: float = 1.0) -> Vector:
    """The min-norm point of the boxed hull, by trying which weights are at their lower bound, at
    their upper bound, or free.
    """
    gram, low, high = (
        np.array(vectors) @ np.array(vectors).T,
        np.maximum(centre - epsilon, 0),
        np.minimum(centre + epsilon, 1),
    )
    points = []
    for state in product((0, 1, 2), repeat=len(centre)):
        free = np.array(state) == 1
        weights = np.where(free, 0, np.where(np.array(state) == 0, low, high))
        ones = np.ones(free.sum())
        system = np.block([[gram[free][:, free], -ones[:, None]], [ones, np.zeros(1)]])
        given_up = np.append(-gram[free] @ weights, 1 - weights.sum())
        weights[free] = np.linalg.lstsq(system, given_up, rcond=None)[0][:-1]
        if (
            abs(weights.sum() - 1) < 1e-12
            and (weights >= low - 1e-12).all()
            and (weights <= high + 1e-12).all()
        ):
            points.append(weights @ np.array(vectors))
    return min(points, key=lambda point: float(np.linalg.norm(point)))


def fedaware(
    alpha: float, *, normalise: bool = False, first: str = "gradient"
) -> Callable[[Vector, list[int]], Vector]:
    m: dict[int, Vector] = {}

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        for i in cohort:
            g = x - sgd(i, x)
            m[i] = (
                alpha * m[i] + (1 - alpha) * g if i in m else (g if first == "gradient" else (1 - alpha) * g)
            )
        hull = [v / np.linalg.norm(v) if normalise else v for v in m.values()]
        return x - 0.5 * shortest(hull, np.ones(len(hull)) / len(hull))

    return round_of


def fedmgda(epsilon: float) -> Callable[[Vector, list[int]], Vector]:
    def round_of(x: Vector, cohort: list[int]) -> Vector:
        g = [x - sgd(i, x) for i in cohort]
        return x - 0.5 * shortest([v / np.linalg.norm(v) for v in g], over(cohort), epsilon)

    return round_of


def variance_reduced_fedavg() -> Callable[[Vector, list[int]], Vector]:
    d = np.zeros((4, 3))

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        mean = P @ d
        models = {i: sgd(i, x, mean - d[i]) for i in cohort}
        for i in cohort:
            d[i] = (x - models[i]) / (ETA * STEPS[i]) - (mean - d[i])
        return sum(w * models[i] for w, i in zip(over(cohort), cohort, strict=True))

    return round_of


def variance_reduced_fednova() -> Callable[[Vector, list[int]], Vector]:
    d = np.zeros((4, 3))

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        weights, mean = over(cohort), P @ d
        tau_eff = sum(w * STEPS[i] for w, i in zip(weights, cohort, strict=True))
        travelled = {i: (x - sgd(i, x, mean - d[i])) / (ETA * STEPS[i]) for i in cohort}
        for i in cohort:
            d[i] = travelled[i] - (mean - d[i])
        return x - tau_eff * sum(w * ETA * travelled[i] for w, i in zip(weights, cohort, strict=True))

    return round_of


def momentum_server(beta: float, *, nesterov: bool) -> Callable[[Vector, list[int]], Vector]:
    v = np.zeros(3)

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal v
        g = x - fedavg(x, cohort)
        v = beta * v + g
        return x - 0.5 * (g + beta * v if nesterov else v)

    return round_of


def adaptive_server(kind: str, beta1: float) -> Callable[[Vector, list[int]], Vector]:
    tau, beta2 = 1e-2, 0.9
    m, v = np.zeros(3), np.full(3, tau**2)

    def round_of(x: Vector, cohort: list[int]) -> Vector:
        nonlocal m, v
        d = fedavg(x, cohort) - x
        m = beta1 * m + (1 - beta1) * d
        if kind == "fedadagrad":
            v = v + d**2
        elif kind == "fedadam":
            v = beta2 * v + (1 - beta2) * d**2
        else:
            v = v - (1 - beta2) * d**2 * np.sign(v - d**2)
        return x + 0.3 * m / (np.sqrt(v) + tau)

    return round_of


ADAPTIVE = {"server_lr": 0.3, "beta2": 0.9, "tau": 1e-2}
CASES: dict[str, tuple[Document, Document, Callable[[], Callable[[Vector, list[int]], Vector]]]] = {
    "fedavg": ({"kind": "fedavg"}, {}, lambda: fedavg),
    "fedavg variance-reduced": ({"kind": "fedavg", "variance_reduction": True}, {}, variance_reduced_fedavg),
    "fedprox": ({"kind": "fedprox", "mu": 0.7}, {}, lambda: fedprox),
    "fedprox adaptive": ({"kind": "fedprox", "mu": 0.7, "adaptive": True}, {}, lambda: adaptive_fedprox(0.7)),
    "fedprox adaptive from zero": (
        {"kind": "fedprox", "mu": 0.0, "adaptive": True},
        {},
        lambda: adaptive_fedprox(0.0),
    ),
    "fednova": ({"kind": "fednova"}, {}, lambda: fednova(float)),
    "fednova proximal": ({"kind": "fednova"}, {"prox_mu": 0.7}, lambda: fednova(proximal_norm(0.7), mu=0.7)),
    "fednova momentum": (
        {"kind": "fednova"},
        {"momentum": 0.9},
        lambda: fednova(momentum_norm(0.9), rho=0.9),
    ),
    "fednova variance-reduced": (
        {"kind": "fednova", "variance_reduction": True},
        {},
        variance_reduced_fednova,
    ),
    "scaffold option 1": ({"kind": "scaffold", "option": 1}, {}, lambda: scaffold(1)),
    "scaffold option 2": ({"kind": "scaffold"}, {}, lambda: scaffold(2)),
    "vrlsgd": ({"kind": "vrlsgd"}, {}, vrlsgd),
    "feddyn": ({"kind": "feddyn", "alpha": 0.6}, {}, lambda: feddyn(0.6)),
    "feddc": ({"kind": "feddc", "alpha": 0.6}, {}, lambda: feddc(0.6, steps=proximal_norm(0.6))),
    "feddc without a tie": ({"kind": "feddc", "alpha": 0.0}, {}, lambda: feddc(0.0, steps=float)),
    "fedsplit": ({"kind": "fedsplit", "s": 0.4}, {}, lambda: fedsplit(0.4)),
    "fedaware": ({"kind": "fedaware", "alpha": 0.3, "server_lr": 0.5}, {}, lambda: fedaware(0.3)),
    "fedaware of unit length": (
        {"kind": "fedaware", "alpha": 0.3, "normalise": True, "server_lr": 0.5},
        {},
        lambda: fedaware(0.3, normalise=True),
    ),
    "fedaware from zero": (
        {"kind": "fedaware", "alpha": 0.3, "first": "zero", "server_lr": 0.5},
        {},
        lambda: fedaware(0.3, first="zero"),
    ),
    "fedmgda": ({"kind": "fedmgda", "server_lr": 0.5}, {}, lambda: fedmgda(1.0)),
    "fedmgda in a box": ({"kind": "fedmgda", "epsilon": 0.1, "server_lr": 0.5}, {}, lambda: fedmgda(0.1)),
    "fedlin": ({"kind": "fedlin"}, {}, fedlin),
    "fedlin from zero": ({"kind": "fedlin", "initial_gradient": "zero"}, {}, lambda: fedlin("zero")),
    "feddane": ({"kind": "feddane", "mu": 0.4}, {}, lambda: feddane(0.4)),
    "fedcm": ({"kind": "fedcm", "alpha": 0.3}, {}, lambda: fedcm(0.3)),
    "fedcm with momentum": ({"kind": "fedcm", "alpha": 0.3}, {"momentum": 0.5}, lambda: fedcm(0.3, 0.5)),
    "fedsvrg": ({"kind": "fedsvrg"}, {}, lambda: fedlin("compressed", weighted=True)),
    "fedavgm": (
        {"kind": "fedavgm", "beta": 0.8, "server_lr": 0.5},
        {},
        lambda: momentum_server(0.8, nesterov=False),
    ),
    "fedavgm nesterov": (
        {"kind": "fedavgm", "beta": 0.8, "nesterov": True, "server_lr": 0.5},
        {},
        lambda: momentum_server(0.8, nesterov=True),
    ),
    "fedadagrad": ({"kind": "fedadagrad", **ADAPTIVE}, {}, lambda: adaptive_server("fedadagrad", 0.0)),
    "fedadam": ({"kind": "fedadam", **ADAPTIVE}, {}, lambda: adaptive_server("fedadam", 0.9)),
    "fedyogi": ({"kind": "fedyogi", **ADAPTIVE}, {}, lambda: adaptive_server("fedyogi", 0.9)),
}


def iterates(algorithm: dict[str, Any], cohorts: list[list[int]], **changes: Any) -> np.ndarray:
    spec = specification(
        QUADRATIC,
        algorithm=algorithm,
        local={"lr": ETA},
        participation={"kind": "trace", "rounds": cohorts},
        **changes,
    )
    return np.array([report.extra["x"] for report in run(spec)])


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize("cohorts", [[[0, 1, 2, 3]] * ROUNDS, COHORTS], ids=["full", "partial"])
@pytest.mark.parametrize("case", CASES)
def test_the_iterates_are_those_of_the_papers_loop(case: str, cohorts: list[list[int]], engine: str) -> None:
    algorithm, optimizer, longhand = CASES[case]
    spec = specification(
        QUADRATIC,
        algorithm=algorithm,
        local={"lr": ETA, "optimizer": optimizer},
        participation={"kind": "trace", "rounds": cohorts},
        execution={"engine": engine},
    )
    iterates = np.array([report.extra["x"] for report in run(spec)])
    np.testing.assert_allclose(iterates, trajectory(longhand(), cohorts), rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize("cohorts", [[[0, 1, 2, 3]] * ROUNDS, COHORTS], ids=["full", "partial"])
@pytest.mark.parametrize(("up", "down"), [(1, 3), (3, 2), (2, 1)])
@pytest.mark.parametrize("feedback", [True, False])
def test_fedlin_exchanges_sparse_gradients_and_exact_models(
    up: int, down: int, feedback: bool, cohorts: list[list[int]], engine: str
) -> None:
    def top_k(k: int) -> Document:
        return {"kind": "top_k", "k": k, "error_feedback": feedback}

    spec = specification(
        QUADRATIC,
        algorithm={"kind": "fedlin"},
        local={"lr": ETA},
        compression={"uplink": top_k(up), "downlink": top_k(down)},
        participation={"kind": "trace", "rounds": cohorts},
        execution={"engine": engine},
    )
    iterates = np.array([report.extra["x"] for report in run(spec)])
    expected = trajectory(fedlin(up=up, down=down, feedback=feedback), cohorts)
    np.testing.assert_allclose(iterates, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("scheme", "longhand"),
    [
        (
            {"kind": "uniform", "weighting": "original"},
            lambda x, cohort: sum(P[i] * (sgd(i, x) if i in cohort else x) for i in range(4)),
        ),
        (
            {"kind": "without_replacement"},
            lambda x, cohort: 2 * sum(P[i] * sgd(i, x) for i in cohort),
        ),
        (
            {"kind": "without_replacement", "transformed": True},
            lambda x, cohort: sum(sgd(i, x, scale=4 * P[i]) for i in cohort) / 2,
        ),
        (
            {"kind": "with_replacement"},
            lambda x, cohort: sum(sgd(i, x) for i in cohort) / 2,
        ),
    ],
    ids=["original", "S2", "S2 transformed", "S1"],
)
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_the_schemes_of_li_et_al(
    scheme: Document, longhand: Callable[[Vector, list[int]], Vector], engine: str
) -> None:
    spec = specification(
        QUADRATIC,
        local={"lr": ETA},
        participation={**scheme, "clients_per_round": 2},
        execution={"engine": engine},
        seeds=[5],
    )
    drawn = [draw(spec.participation, P, 5, round) for round in range(1, ROUNDS + 1)]
    cohorts = [np.repeat(row.clients, row.times).tolist() for row in drawn]
    iterates = np.array([report.extra["x"] for report in run(spec)])
    np.testing.assert_allclose(iterates, trajectory(longhand, cohorts), rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_fedsvrg_compares_each_mini_batch_at_both_models(engine: str) -> None:
    draw_data = np.random.default_rng(2)
    a, b = draw_data.normal(size=(3, 7, 2)), draw_data.normal(size=(3, 7))
    clients = [{"A": a[i].tolist(), "b": b[i].tolist()} for i in range(3)]
    spec = ExperimentSpec.model_validate(
        {
            "name": "mini-batches",
            "problem": {"dataset": {"kind": "least_squares", "clients": clients}},
            "algorithm": {"kind": "fedsvrg"},
            "local": {"lr": 0.3, "epochs": 2, "batch_size": 3},
            "rounds": 4,
            "evaluation": {"record_parameters": True},
            "execution": {"engine": engine},
        }
    )

    def slope(i: int, y: Vector, rows: NDArray[np.int64]) -> Vector:
        return a[i][rows].T @ (a[i][rows] @ y - b[i][rows]) / len(rows)

    x, expected = np.zeros(2), []
    for round in range(1, 5):
        g, models = np.mean([slope(i, x, np.arange(7)) for i in range(3)], axis=0), []
        for i in range(3):
            y, batches = x, mini_batches(0, round, i, 7, Work(6, 3))
            for batch in batches:
                rows = batch[batch >= 0]
                y = y - 0.3 / len(batches) * (slope(i, y, rows) - slope(i, x, rows) + g)
            models.append(y)
        x = np.mean(models, axis=0)
        expected.append(x)
    np.testing.assert_allclose([report.extra["x"] for report in run(spec)], expected, rtol=0, atol=1e-10)


STEPS_OF_ALL = 4


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
def test_a_rule_whose_server_moves_by_the_aggregate_sends_what_fedavg_does(engine: str) -> None:
    common: Document = {
        "local": {"lr": ETA, "steps": STEPS_OF_ALL},
        "systems": {"steps": None},
        "participation": {"kind": "full", "weighting": "uniform"},
        "execution": {"engine": engine},
        "rounds": 4,
    }
    simulation = Simulation(specification(QUADRATIC, algorithm={"kind": "fedcm", "alpha": 0.3}, **common), 0)
    fedavg = Simulation(specification(QUADRATIC, algorithm={"kind": "fedavg"}, **common), 0)
    job = simulation.begin().job
    assert job is not None
    assert job.sums is not None, "no change of a client is needed"
    x, momentum = simulation.state.server.x.numpy().copy(), np.zeros(3)
    for _ in range(4):
        ends = []
        for i in range(4):
            y = x.copy()
            for _ in range(STEPS_OF_ALL):
                y = y - ETA * (0.3 * gradient(i, y) + 0.7 * momentum)
            ends.append(y)
        moved = np.mean(ends, axis=0) - x
        x, momentum = x + moved, -moved / (ETA * STEPS_OF_ALL)
        assert simulation.advance().bytes_up == fedavg.advance().bytes_up
        np.testing.assert_allclose(simulation.state.server.x.numpy(), x, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class LangevinStep(Rule):
    """y <- y - eta g_i(y) + sqrt(2 eta T) xi: Deng et al., On Convergence of Federated Averaging Langevin
    Dynamics, UAI 2024, Algorithm 1, with noise of its own for each client.
    """

    temperature: float = 0.02

    def needs(self) -> frozenset[Need]:
        return frozenset({"random"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        noise = context.drawn("langevin", lambda generator: generator.standard_normal(y.shape[-1]))
        return grad - (2 * self.temperature / context.lr) ** 0.5 * noise


class Langevin(AlgorithmSpec):
    """Sampling from the posterior of the global model."""

    source = "Deng et al., UAI 2024"
    fixed_point = "samples around the optimum"

    kind: Literal["langevin"] = "langevin"

    def rule(self) -> Rule:
        return LangevinStep()


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
def test_a_rule_draws_from_streams_of_seed_round_client_and_step(engine: str) -> None:
    spec = specification(
        QUADRATIC,
        algorithm=Langevin(),
        local={"lr": ETA, "steps": None},
        systems={"steps": {"kind": "per_client", "values": [1, 4, 2, 3]}},
        participation={"kind": "uniform", "clients_per_round": 3, "weighting": "uniform"},
        execution={"engine": engine},
        rounds=4,
    )
    simulation = Simulation(spec, 5)
    x = simulation.state.server.x.numpy().copy()
    for round in range(1, 5):
        ends = []
        for i in draw(spec.participation, np.full(4, 0.25), 5, round).clients.tolist():
            y = x.copy()
            for k in range([1, 4, 2, 3][i]):
                xi = generator(5, "rule: langevin", round, i, k).standard_normal(3)
                y = y - ETA * gradient(i, y) + (2 * ETA * 0.02) ** 0.5 * xi
            ends.append(y)
        x = np.mean(ends, axis=0)
        simulation.advance()
        np.testing.assert_allclose(simulation.state.server.x.numpy(), x, rtol=0, atol=1e-12)


def test_a_rule_that_does_not_state_that_it_draws_is_told_to() -> None:
    class Silent(LangevinStep):
        def needs(self) -> frozenset[Need]:
            return frozenset()

        def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
            return super().direction(grad, y, context)

    class Quiet(Langevin):
        kind: Literal["quiet"] = "quiet"  # type: ignore[assignment]

        def rule(self) -> Rule:
            return Silent()

    with pytest.raises(TypeError, match=r"`random` in `needs\(\)`"):
        Simulation(specification(QUADRATIC, algorithm=Quiet()), 0).advance()


def drawing(make: Callable[[Generator], Any]) -> AlgorithmSpec:
    class Drawing(LangevinStep):
        def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
            return grad * (1 + 0.01 * context.drawn("factor", make))

        affine_form = Rule.affine_form

    class Drawn(Langevin):
        kind: Literal["drawn"] = "drawn"  # type: ignore[assignment]

        def rule(self) -> Rule:
            return Drawing()

    return Drawn()


def test_a_number_drawn_for_each_client_is_a_column() -> None:
    algorithm = drawing(lambda generator: generator.standard_normal())
    found = []
    for engine in ("reference", "vectorised"):
        spec = specification(QUADRATIC, algorithm=algorithm, execution={"engine": engine})
        simulation = Simulation(spec, 0)
        simulation.advance()
        found.append(simulation.state.server.x.numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)


def test_draws_of_different_shapes_are_refused_with_their_purpose() -> None:
    algorithm = drawing(lambda generator: generator.random(int(generator.integers(1, 9))))
    spec = specification(QUADRATIC, algorithm=algorithm, execution={"engine": "vectorised"})
    with pytest.raises(ValueError, match="'factor' must have the same shape"):
        Simulation(spec, 0).advance()
