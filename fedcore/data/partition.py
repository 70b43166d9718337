"""Partitions: which client holds which samples of a data set that comes in one piece."""

import numpy as np

from fedcore.data.dirichlet import dirichlet
from fedcore.data.pools import Ids, deal, pieces, pools_of
from fedcore.data.random import generator
from fedcore.errors import SpecificationError
from fedcore.spec.partition import (
    AnyPartition,
    ByKeyPartition,
    ClassesPerClientPartition,
    DirichletPartition,
    IidPartition,
    ShardsPartition,
)

_MAX_LOG = 40.0
"""More than any data set holds, and still a whole number."""


def partition(spec: AnyPartition, labels: Ids, seed: int, keys: Ids | None = None) -> list[Ids]:
    """Each client's sample indices into `labels` [n]; no sample twice, no client empty. `keys` [n] say whose each sample is.

    Raises SpecificationError when the data cannot be divided as asked.
    """
    parts = _parts(spec, labels, seed if spec.seed is None else spec.seed, keys)
    fewest, least = min(map(len, parts)), getattr(spec, "min_samples", 1)
    if fewest < least:
        detail = f"one client would hold {fewest} of the {len(labels)} samples, fewer than {least}; use fewer clients"
        raise SpecificationError("/problem/partition/clients", detail)
    return parts


def _parts(spec: AnyPartition, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
    draw = generator(seed, "partition")
    match spec:
        case IidPartition():
            return list(np.array_split(draw.permutation(len(labels)), spec.clients))
        case DirichletPartition():
            return dirichlet(spec, labels, seed)
        case ShardsPartition():
            return _shards(spec, labels, draw)
        case ClassesPerClientPartition():
            return _classes_per_client(spec, labels, draw)
        case ByKeyPartition():
            assert keys is not None
            return _by_key(spec, keys, draw)


def _shards(spec: ShardsPartition, labels: Ids, draw: np.random.Generator) -> list[Ids]:
    by_label = np.argsort(labels, kind="stable")
    count = spec.clients * spec.shards_per_client
    # As `array_split` has it: the first few have one more.
    ends = np.arange(1, count + 1) * (len(labels) // count) + np.minimum(np.arange(1, count + 1), len(labels) % count)
    dealt = draw.permutation(count).reshape(spec.clients, spec.shards_per_client)
    sizes = np.diff(ends, prepend=0)
    return pieces(by_label, (ends - sizes)[dealt], sizes[dealt])


def _classes_per_client(spec: ClassesPerClientPartition, labels: Ids, draw: np.random.Generator) -> list[Ids]:
    """Client u holds classes u, u + 1, ... (modulo their number): the same few of each, then a lognormal share of what is left."""
    pools = pools_of(labels, draw)
    wanted = (np.arange(spec.clients)[:, None] + np.arange(spec.classes)) % len(pools)
    sizes = np.zeros((spec.clients, len(pools)), np.int64)
    np.put_along_axis(sizes, wanted, _spread(spec.min_samples, spec.classes), axis=1)
    spare = _spare(spec, pools, sizes)
    if spec.mean is not None:
        drawn = spec.min_samples + np.exp(np.minimum(draw.normal(spec.mean, spec.sigma, spec.clients), _MAX_LOG)).astype(np.int64)
        each = (drawn[:, None] + np.arange(spec.classes)[::-1]) // spec.classes
        np.put_along_axis(sizes, wanted, np.maximum(1, each), axis=1)
        _spare(spec, pools, sizes)
        return deal(pools, sizes)
    logs = np.where(sizes > 0, draw.normal(0.0, spec.sigma, sizes.shape), -np.inf)
    # Relative to the largest, so that no sigma overflows; a class that nobody holds has only zeros.
    shares = np.exp(logs - logs.max(0, initial=np.finfo(float).min))
    sizes += (spare * shares / np.maximum(shares.sum(0), 1)).astype(np.int64)
    return deal(pools, sizes)


def _spare(spec: ClassesPerClientPartition, pools: list[Ids], sizes: Ids) -> Ids:
    """[C] what is left of each class."""
    spare: Ids = np.array([len(pool) for pool in pools]) - sizes.sum(0)
    if spare.min() < 0:
        detail = f"class {spare.argmin()} has {-spare.min()} samples too few for {spec.clients} clients of at least {spec.min_samples}"
        raise SpecificationError("/problem/partition", f"{detail}; use fewer clients, fewer classes each, a smaller min_samples or mean")
    return spare


def _by_key(spec: ByKeyPartition, keys: Ids, draw: np.random.Generator) -> list[Ids]:
    sizes = np.bincount(keys)
    enough = np.flatnonzero(sizes >= spec.min_samples)
    if len(enough) < spec.clients:
        raise SpecificationError(
            "/problem/partition/clients", f"{len(enough)} have at least {spec.min_samples} training samples: use at most that many clients"
        )
    chosen = np.sort(draw.choice(enough, spec.clients, replace=False))
    held = np.split(np.argsort(keys, kind="stable"), np.cumsum(sizes)[:-1])
    return [held[key] for key in chosen]


def _spread(total: int, parts: int) -> Ids:
    """`total` as `parts` nearly equal whole numbers, at least one each."""
    return np.maximum(1, np.diff(np.linspace(0, total, parts + 1).astype(np.int64)))
