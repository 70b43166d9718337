"""Compressed federated averaging longhand, in NumPy, against the engine."""

from collections.abc import Callable

import numpy as np
import pytest

from fedcore import run
from fedcore.random import generator
from tests.builders.specifications import QUADRATIC, Document, specification

CLIENTS = QUADRATIC["problem"]["dataset"]["clients"]
H = [np.array(client["H"]) for client in CLIENTS]
E = [np.array(client["e"]) for client in CLIENTS]
WEIGHTS = np.array([client["weight"] for client in CLIENTS])
P = WEIGHTS / WEIGHTS.sum()
STEPS = QUADRATIC["systems"]["steps"]["values"]
DIM, LR, ROUNDS = 3, 0.05, QUADRATIC["rounds"]

Vector = np.ndarray
Compress = Callable[[Vector, np.random.Generator, bool], Vector]


def top_2(v: Vector, lot: np.random.Generator, feedback: bool) -> Vector:
    return np.where(np.abs(v) >= np.sort(np.abs(v))[-2], v, 0)


def rand_2(v: Vector, lot: np.random.Generator, feedback: bool) -> Vector:
    kept = np.zeros(DIM)
    kept[lot.choice(DIM, 2, replace=False, shuffle=False)] = 1 if feedback else DIM / 2
    return kept * v


def qsgd_2(v: Vector, lot: np.random.Generator, feedback: bool) -> Vector:
    """Alistarh et al.: the level is l or l + 1, the latter with probability s |v_i| / |v| - l."""
    norm = np.sqrt(v @ v)
    if norm == 0:
        return v
    omega = min(DIM / 4, np.sqrt(DIM) / 2)
    u, q = lot.random(DIM), np.zeros(DIM)
    for i in range(DIM):
        level = int(2 * abs(v[i]) / norm)
        q[i] = norm * np.sign(v[i]) * (level + (u[i] < 2 * abs(v[i]) / norm - level)) / 2
    return q / (1 + omega) if feedback else q


def sign(v: Vector, lot: np.random.Generator, feedback: bool) -> Vector:
    return np.abs(v).sum() / DIM * np.where(v >= 0, 1, -1)


def natural(v: Vector, lot: np.random.Generator, feedback: bool) -> Vector:
    """Horvath et al.: 2^a or 2^(a+1), the latter with probability |v_i| / 2^a - 1."""
    u, q = lot.random(DIM), np.zeros(DIM)
    for i in range(DIM):
        if v[i]:
            low = 2.0 ** np.floor(np.log2(abs(v[i])))
            q[i] = np.sign(v[i]) * low * (2 if u[i] < abs(v[i]) / low - 1 else 1)
    return q / (9 / 8) if feedback else q


KINDS: dict[str, tuple[Document, Compress]] = {
    "top_k": ({"k": 2}, top_2),
    "rand_k": ({"k": 2}, rand_2),
    "qsgd": ({"levels": 2}, qsgd_2),
    "natural": ({}, natural),
    "sign": ({}, sign),
}


def longhand(compress: Compress, feedback: bool, seed: int) -> list[Vector]:
    """Every round: y_i from w; h_i = C(rho_i + y_i - w); x' = x + sum p_i h_i; w <- w +
    C(x' - w).
    """
    w = np.array(QUADRATIC["problem"]["dataset"]["x0"])
    rho, e, seen = np.zeros((len(CLIENTS), DIM)), np.zeros(DIM), []
    for round in range(1, ROUNDS + 1):
        mean = np.zeros(DIM)
        for i, steps in enumerate(STEPS):
            y = w
            for _ in range(steps):
                y = y - LR * (H[i] @ y - E[i])
            message = y - w + rho[i]
            h = compress(message, generator(seed, "uplink compression", round, i), feedback)
            rho[i] = message - h if feedback else 0
            mean = mean + P[i] * h
        sent = compress(mean + e, generator(seed, "downlink compression", round), feedback)
        e = mean + e - sent if feedback else e
        w = w + sent
        seen.append(w + e)
    return seen


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_every_round_is_that_of_the_loop(kind: str, feedback: bool, engine: str) -> None:
    level, compress = KINDS[kind]
    block = {"kind": kind, **level, "error_feedback": feedback}
    spec = specification(
        QUADRATIC, seeds=[5], compression={"uplink": block, "downlink": block}, execution={"engine": engine}
    )
    got = [report.extra["x"] for report in run(spec)]
    np.testing.assert_allclose(got, longhand(compress, feedback, seed=5), rtol=0, atol=1e-10)
