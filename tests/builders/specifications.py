"""Specifications that many tests start from."""

from typing import Any

import numpy as np

from fedcore import ExperimentSpec, algorithms, compression
from fedcore.block import kind_of
from fedcore.compression.base import Sparsifier
from fedcore.core import Algorithm
from fedcore.presets import override

Document = dict[str, Any]

ALGORITHMS: tuple[str, ...] = tuple(map(kind_of, algorithms.ALGORITHMS))
OBJECTIVES: tuple[str, ...] = tuple(
    kind_of(member)
    for member in algorithms.ALGORITHMS
    if member.model_validate({"kind": kind_of(member)}).objective() is not None
)
"""Algorithms whose clients descend a loss of what a network computes; exact problems have no network."""
EXACTLY: tuple[str, ...] = tuple(kind for kind in ALGORITHMS if kind not in OBJECTIVES)
"""Algorithms that exact problems take."""
POOLED: tuple[str, ...] = tuple(
    kind_of(member)
    for member in algorithms.ALGORITHMS
    if member.model_validate({"kind": kind_of(member)}).models().pooled
)
"""Algorithms that send nothing, so that nothing of it is compressed."""
COMPILED: tuple[str, ...] = tuple(
    kind_of(member)
    for member in algorithms.ALGORITHMS
    for spec in (member.model_validate({"kind": kind_of(member)}),)
    if (made := Algorithm(spec.rule(), spec.models(), spec.objective())).is_affine() and made.starts_at_x()
)
"""Those that the engine `compiled` trains."""

COMPRESSORS: Document = {
    kind_of(member): {"ratio": 0.1} if issubclass(member, Sparsifier) else dict(member.example)
    for member in compression.COMPRESSORS
    if member is not compression.NoCompression
}
"""Each compressor, with a level where it has one."""


def suited(kind: str) -> Document:
    """The algorithm of this kind; beside a network that has features, if it may read them."""
    network = {"problem": {"model": {"kind": "mlp", "hidden": [3]}}} if kind in OBJECTIVES else {}
    return {"algorithm": {"kind": kind}, **network}


merged = override
"""`base` with `changes` laid over it, as overrides are over a preset."""


def specification(base: Document, **changes: Any) -> ExperimentSpec:
    """`base` with `changes`, validated."""
    return ExperimentSpec.model_validate(merged(base, changes))


def quadratics(count: int = 4, dim: int = 3, seed: int = 7) -> list[Document]:
    """Heterogeneous strongly convex clients: eigenvalues of H between 0.5 and 2, optima far apart,
    unequal weights.
    """
    draw = np.random.default_rng(seed)
    clients = []
    for _ in range(count):
        basis, _ = np.linalg.qr(draw.normal(size=(dim, dim)))
        hessian = basis @ np.diag(draw.uniform(0.5, 2.0, dim)) @ basis.T
        hessian = (hessian + hessian.T) / 2
        clients.append(
            {
                "H": hessian.tolist(),
                "e": draw.normal(scale=3.0, size=dim).tolist(),
                "c": float(draw.normal()),
                "weight": float(draw.uniform(1, 4)),
            }
        )
    return clients


QUADRATIC: Document = {
    "name": "quadratic",
    "problem": {"dataset": {"kind": "quadratic", "clients": quadratics(), "x0": [1.0, -2.0, 0.5]}},
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.05, "steps": 5},
    "systems": {"steps": {"kind": "per_client", "values": [5, 1, 7, 3]}},
    "rounds": 8,
    "evaluation": {"record_parameters": True},
}
"""Four heterogeneous quadratics with unequal local steps."""

SYNTHETIC: Document = {
    "name": "synthetic",
    "problem": {
        "dataset": {"kind": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 8, "seed": 4},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.01, "epochs": 2, "batch_size": 32},
    "participation": {"kind": "uniform", "clients_per_round": 4},
    "systems": {"stragglers": {"fraction": 0.5, "policy": "accept_partial"}},
    "rounds": 4,
    "execution": {"precision": "float64"},
}
"""Softmax regression on eight unequal clients, half of them stragglers, with short last batches.

They have 52 to 374 samples, of all ten classes; under other seeds one has thousands, and takes most
of the time.
"""

DIGITS: Document = {
    "name": "digits",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": 5, "alpha": 0.3},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 20},
    "rounds": 3,
}
"""Softmax regression on real images, in unequal shares."""

DIGITS_CNN: Document = {
    "name": "digits cnn",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": 4, "alpha": 0.5},
        "model": {"kind": "cnn", "channels": [2, 3], "hidden": 5, "l2": 0.1},
    },
    "algorithm": {"kind": "scaffold"},
    "local": {"lr": 0.05, "steps": 3, "batch_size": 100},
    "systems": {
        "batch_size": {"kind": "per_client", "values": [30, 7, 1000, 3]},
        "steps": {"kind": "per_client", "values": [2, 4, 1, 3]},
    },
    "rounds": 2,
    "evaluation": {"measures": []},
    "execution": {"precision": "float64"},
}

ONE_RUN: Document = {
    "name": "one run",
    "problem": {"dataset": {"kind": "quadratic", "generate": {"dim": 2, "clients": 3}}},
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "steps": 2},
    "rounds": 4,
}
"""One arm, one seed, four rounds."""

TINY: Document = {**ONE_RUN, "name": "tiny", "tags": ["small"], "rounds": 3}
"""One run of three rounds."""

TWO_ARMS: Document = {**TINY, "name": "two arms", "seeds": [0, 1, 2], "sweep": {"local.lr": [0.1, 0.05]}}
"""Six runs of three rounds."""
