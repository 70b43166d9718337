"""Partitions: which client holds which samples of a data set that comes in one piece."""

import numpy as np
from numpy.typing import NDArray

from fedcore.data.random import generator
from fedcore.errors import SpecificationError
from fedcore.spec.problem import AnyPartition, ClassesPerClientPartition, DirichletPartition, IidPartition, ShardsPartition

Ids = NDArray[np.int64]
ATTEMPTS = 1_000
"""Draws of a Dirichlet partition before its minimum size is given up."""


def partition(spec: AnyPartition, labels: Ids, seed: int) -> list[Ids]:
    """Each client's sample indices into `labels` [n]; no sample twice, no client empty.

    Raises SpecificationError when the data cannot be divided as asked.
    """
    draw = generator(seed if spec.seed is None else spec.seed, "partition")
    match spec:
        case IidPartition():
            return list(np.array_split(draw.permutation(len(labels)), spec.clients))
        case DirichletPartition():
            return _dirichlet(spec, labels, draw)
        case ShardsPartition():
            return _shards(spec, labels, draw)
        case ClassesPerClientPartition():
            return _classes_per_client(spec, labels, draw)


def _dirichlet(spec: DirichletPartition, labels: Ids, draw: np.random.Generator) -> list[Ids]:
    for _ in range(ATTEMPTS):
        parts = _dirichlet_once(spec, labels, draw)
        if min(len(part) for part in parts) >= spec.min_samples:
            return parts
    raise SpecificationError(
        "/problem/partition",
        f"in {ATTEMPTS} draws of Dirichlet({spec.alpha:g}) over {spec.clients} clients one always held fewer than {spec.min_samples} "
        "samples; use fewer clients, a larger alpha or a smaller min_samples",
    )


def _dirichlet_once(spec: DirichletPartition, labels: Ids, draw: np.random.Generator) -> list[Ids]:
    parts: list[list[Ids]] = [[] for _ in range(spec.clients)]
    held = np.zeros(spec.clients)
    for label in np.unique(labels):
        samples = draw.permutation(np.flatnonzero(labels == label))
        shares = draw.dirichlet(np.full(spec.clients, spec.alpha)) * (held < len(labels) / spec.clients)
        # Underflow at a tiny alpha can leave nothing to divide by: one client then takes the class.
        shares = shares / shares.sum() if shares.sum() > 0 else np.eye(spec.clients)[draw.integers(spec.clients)]
        cuts = (np.cumsum(shares)[:-1] * len(samples)).astype(int)
        for client, piece in enumerate(np.split(samples, cuts)):
            parts[client].append(piece)
            held[client] += len(piece)
    return [np.concatenate(pieces) for pieces in parts]


def _shards(spec: ShardsPartition, labels: Ids, draw: np.random.Generator) -> list[Ids]:
    by_label = np.argsort(labels, kind="stable")
    shards = np.array_split(by_label, spec.clients * spec.shards_per_client)
    dealt = draw.permutation(len(shards)).reshape(spec.clients, spec.shards_per_client)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]


def _classes_per_client(spec: ClassesPerClientPartition, labels: Ids, draw: np.random.Generator) -> list[Ids]:
    """Client u holds classes u, u + 1, ... (modulo their number): the same few of each, then a lognormal share of what is left."""
    classes = np.unique(labels)
    pools = [draw.permutation(np.flatnonzero(labels == label)) for label in classes]
    wanted = [[(client + step) % len(classes) for step in range(spec.classes)] for client in range(spec.clients)]
    floors = _spread(spec.min_samples, spec.classes)
    sizes = np.zeros((spec.clients, len(classes)), int)
    for hand in range(spec.clients):
        sizes[hand, wanted[hand]] = floors
    spare = np.array([len(pool) for pool in pools]) - sizes.sum(0)
    if spare.min() < 0:
        short = int(classes[spare.argmin()])
        raise SpecificationError(
            "/problem/partition",
            f"class {short} has {-spare.min()} samples too few for {spec.clients} clients of at least {spec.min_samples}",
        )
    shares = draw.lognormal(0.0, spec.sigma, sizes.shape) * (sizes > 0)
    sizes += np.floor(spare * shares / np.maximum(shares.sum(0), np.finfo(float).tiny)).astype(int)
    return _deal(pools, sizes)


def _spread(total: int, parts: int) -> Ids:
    """`total` as `parts` nearly equal whole numbers, at least one each."""
    return np.maximum(1, np.diff(np.linspace(0, total, parts + 1).astype(int)))


def _deal(pools: list[Ids], sizes: Ids) -> list[Ids]:
    """Hand out sizes[i, c] samples of pool c to client i, in order."""
    ends = np.cumsum(sizes, axis=0)
    return [
        np.concatenate([pool[end - size : end] for pool, size, end in zip(pools, row, stops, strict=True)])
        for row, stops in zip(sizes, ends, strict=True)
    ]
