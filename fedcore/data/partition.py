"""Partitions: assignment of the samples of an undivided data set to clients."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.block import ceil_share
from fedcore.data.federated import Dataset, FederatedData, Samples, divide
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

Ids = NDArray[np.int64]


def pools_of(labels: Ids, draw: np.random.Generator) -> list[Ids]:
    """The samples of each class, shuffled."""
    return [draw.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def distribute(pools: list[Ids], sizes: Ids) -> list[Ids]:
    """Hand out sizes[i, c] samples of pool c to client i, in order."""
    lengths = np.array([len(pool) for pool in pools])
    starts = np.cumsum(lengths) - lengths + np.cumsum(sizes, axis=0) - sizes
    return slices(np.concatenate(pools), starts, sizes)


def slices(samples: Ids, starts: Ids, sizes: Ids) -> list[Ids]:
    """Client i holds samples[starts[i, p] :][: sizes[i, p]] of every p, in order."""
    lengths = sizes.ravel()
    places = np.arange(lengths.sum()) + np.repeat(starts.ravel() - (np.cumsum(lengths) - lengths), lengths)
    return np.split(samples[places], np.cumsum(sizes.sum(1))[:-1])


ATTEMPTS = 1_000
"""Draws before the minimum size is given up."""


def dirichlet(spec: DirichletPartition, labels: Ids, seed: int) -> list[Ids]:
    """Every sample to one client, as the specification's variant has it."""
    draw = generator(seed, "partition")
    if spec.variant == "fednova":
        return _fednova(spec, labels, seed)
    pools = pools_of(labels, draw)
    counts = np.array([len(pool) for pool in pools])
    match spec.variant:
        case "per_class":
            return distribute(pools, _redrawn(spec, counts, draw))
        case "per_client":
            return distribute(pools, _per_client(spec, counts, draw))
        case "feddyn":
            return distribute(pools, _feddyn(spec, counts, draw))


def _fednova(spec: DirichletPartition, labels: Ids, seed: int) -> list[Ids]:
    """FedNova's code draw by draw: NumPy's legacy generator shuffles each class, then divides it.

    All again if one is too small.
    """
    draw = np.random.RandomState(seed)
    for _ in range(ATTEMPTS):
        held: list[list[Ids]] = [[] for _ in range(spec.clients)]
        for label in np.unique(labels):
            pool = np.flatnonzero(labels == label)
            draw.shuffle(pool)
            sizes = np.array([sum(map(len, part)) for part in held])
            has_room = sizes < len(labels) / spec.clients
            shares = draw.dirichlet(np.full(spec.clients, spec.alpha)) * has_room
            shares = shares / shares.sum() if shares.sum() > 0 else has_room / has_room.sum()
            for part, piece in zip(
                held, np.split(pool, (np.cumsum(shares) * len(pool)).astype(np.int64)[:-1]), strict=True
            ):
                part.append(piece)
        parts = [np.concatenate(part) for part in held]
        if min(map(len, parts)) >= spec.min_samples:
            return parts
    raise _too_small(spec)


def _redrawn(spec: DirichletPartition, counts: Ids, draw: np.random.Generator) -> Ids:
    for _ in range(ATTEMPTS):
        sizes = _per_class(spec, counts, draw)
        if sizes.sum(1).min() >= spec.min_samples:
            return sizes
    raise _too_small(spec)


def _too_small(spec: DirichletPartition) -> SpecificationError:
    return SpecificationError(
        "/problem/partition",
        f"in {ATTEMPTS} draws of Dirichlet({spec.alpha:g}) over {spec.clients} clients one always held fewer"
        f" than {spec.min_samples} samples; use fewer clients, a larger alpha or a smaller min_samples",
    )


def _per_class(spec: DirichletPartition, counts: Ids, draw: np.random.Generator) -> Ids:
    """How many samples of each class each client gets, [N, C].

    Who holds n / N samples gets no more.
    """
    sizes = np.zeros((spec.clients, len(counts)), np.int64)
    for label, count in enumerate(counts):
        has_room = sizes.sum(1) < sum(counts) / spec.clients
        shares = draw.dirichlet(np.full(spec.clients, spec.alpha)) * has_room
        # Underflow at a tiny alpha can leave nothing to divide by: one client with room then takes
        # the class.
        shares = (
            shares / shares.sum()
            if shares.sum() > 0
            else np.eye(spec.clients)[draw.choice(np.flatnonzero(has_room))]
        )
        cuts = (np.cumsum(shares)[:-1] * count).astype(np.int64)
        sizes[:, label] = np.diff(cuts, prepend=0, append=count)
    return sizes


def _per_client(spec: DirichletPartition, counts: Ids, draw: np.random.Generator) -> Ids:
    """[N, C]: one client after another, in random order, draws all its samples."""
    shares = _shares(spec.alpha * counts / counts.sum(), spec.clients, draw)
    order = draw.permutation(spec.clients)
    return _served(shares, order.repeat(_even(counts.sum(), spec.clients)[order]), counts, draw)


def _feddyn(spec: DirichletPartition, counts: Ids, draw: np.random.Generator) -> Ids:
    """[N, C]: again and again one of the clients that want more, at random, draws one sample."""
    shares = _shares(np.full(len(counts), spec.alpha), spec.clients, draw)
    return _served(shares, _interleaved(_even(counts.sum(), spec.clients), draw), counts, draw)


def _shares(
    concentration: NDArray[np.float64], clients: int, draw: np.random.Generator
) -> NDArray[np.float64]:
    """[N, C] each client's probabilities of the classes."""
    return draw.dirichlet(concentration, clients)


def _even(samples: int, clients: int) -> Ids:
    """[N] sizes that differ by one at most."""
    return np.diff(np.arange(clients + 1) * samples // clients)


def _interleaved(sizes: Ids, draw: np.random.Generator) -> Ids:
    """Clients, each as often as its size says.

    Every time one of those not yet done, all equally likely.
    """
    waiting, left = list(range(len(sizes))), sizes.tolist()
    order = []
    for lot in draw.random(int(sizes.sum())):
        place = int(lot * len(waiting))
        client = waiting[place]
        order.append(client)
        left[client] -= 1
        if not left[client]:
            waiting[place] = waiting[-1]
            waiting.pop()
    return np.array(order, np.int64)


def _served(shares: NDArray[np.float64], order: Ids, counts: Ids, draw: np.random.Generator) -> Ids:
    """[N, C] when the clients of `order` draw a sample each by their `shares`, among the classes
    that are not exhausted.
    """
    sizes, left = np.zeros(shares.shape, np.int64), counts.tolist()
    cumulative = _cumulative(shares, counts)
    for client, lot in zip(order.tolist(), draw.random(len(order)).tolist(), strict=True):
        label = int(cumulative[client].searchsorted(lot, side="right"))
        sizes[client, label] += 1
        left[label] -= 1
        if not left[label]:
            cumulative = _cumulative(shares, np.array(left))
    return sizes


def _cumulative(shares: NDArray[np.float64], left: Ids) -> NDArray[np.float64]:
    """[N, C] cumulative probabilities over the classes that have samples left.

    One's own, or else in proportion to what is left.
    """
    if not left.any():
        return shares
    open_shares = np.where(left > 0, shares, 0.0)
    open_shares = np.where(open_shares.sum(1, keepdims=True) > 0, open_shares, left)
    ends = np.cumsum(open_shares / open_shares.sum(1, keepdims=True), axis=1)
    # Rounding may leave the last end below 1, and a draw above it.
    ends[:, np.flatnonzero(left)[-1] :] = 1.0
    return ends


_MAX_LOG = 40.0
"""More than any data set holds, and still a whole number."""


def partition(spec: AnyPartition, labels: Ids, seed: int, keys: Ids | None = None) -> list[Ids]:
    """Each client's sample indices into `labels` [n].

    No sample twice, no client empty. `keys` [n] say whose each sample is.

    Raises SpecificationError when the data cannot be divided as asked.
    """
    parts = _parts(spec, labels, seed if spec.seed is None else spec.seed, keys)
    fewest, least = min(map(len, parts)), getattr(spec, "min_samples", 1)
    if fewest < least:
        detail = (
            f"one client would hold {fewest} of the {len(labels)} samples, fewer than {least}; use fewer"
            " clients"
        )
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
    ends = np.arange(1, count + 1) * (len(labels) // count) + np.minimum(
        np.arange(1, count + 1), len(labels) % count
    )
    dealt = draw.permutation(count).reshape(spec.clients, spec.shards_per_client)
    sizes = np.diff(ends, prepend=0)
    return slices(by_label, (ends - sizes)[dealt], sizes[dealt])


def _classes_per_client(spec: ClassesPerClientPartition, labels: Ids, draw: np.random.Generator) -> list[Ids]:
    """Client u holds classes u, u + 1, ... (modulo their number): the same few of each, then a
    lognormal share of what is left.
    """
    pools = pools_of(labels, draw)
    wanted = (np.arange(spec.clients)[:, None] + np.arange(spec.classes)) % len(pools)
    sizes = np.zeros((spec.clients, len(pools)), np.int64)
    np.put_along_axis(sizes, wanted, _spread(spec.min_samples, spec.classes), axis=1)
    spare = _spare(spec, pools, sizes)
    if spec.mean is not None:
        drawn = spec.min_samples + np.exp(
            np.minimum(draw.normal(spec.mean, spec.sigma, spec.clients), _MAX_LOG)
        ).astype(np.int64)
        each = (drawn[:, None] + np.arange(spec.classes)[::-1]) // spec.classes
        np.put_along_axis(sizes, wanted, np.maximum(1, each), axis=1)
        _spare(spec, pools, sizes)
        return distribute(pools, sizes)
    logs = np.where(sizes > 0, draw.normal(0.0, spec.sigma, sizes.shape), -np.inf)
    # Relative to the largest, so that no sigma overflows; a class that nobody holds has only zeros.
    shares = np.exp(logs - logs.max(0, initial=np.finfo(float).min))
    sizes += (spare * shares / np.maximum(shares.sum(0), 1)).astype(np.int64)
    return distribute(pools, sizes)


def _spare(spec: ClassesPerClientPartition, pools: list[Ids], sizes: Ids) -> Ids:
    """[C] what is left of each class."""
    spare: Ids = np.array([len(pool) for pool in pools]) - sizes.sum(0)
    if spare.min() < 0:
        detail = (
            f"class {spare.argmin()} has {-spare.min()} samples too few for {spec.clients} clients of at"
            f" least {spec.min_samples}"
        )
        raise SpecificationError(
            "/problem/partition",
            f"{detail}; use fewer clients, fewer classes each, a smaller min_samples or mean",
        )
    return spare


def _by_key(spec: ByKeyPartition, keys: Ids, draw: np.random.Generator) -> list[Ids]:
    sizes = np.bincount(keys)
    enough = np.flatnonzero(sizes >= spec.min_samples)
    if len(enough) < spec.clients:
        raise SpecificationError(
            "/problem/partition/clients",
            f"{len(enough)} have at least {spec.min_samples} training samples: use at most that many clients",
        )
    chosen = np.sort(draw.choice(enough, spec.clients, replace=False))
    held = np.split(np.argsort(keys, kind="stable"), np.cumsum(sizes)[:-1])
    return [held[key] for key in chosen]


def _spread(total: int, parts: int) -> Ids:
    """`total` as `parts` nearly equal whole numbers, at least one each."""
    return np.maximum(1, np.diff(np.linspace(0, total, parts + 1).astype(np.int64)))


def merge_splits(dataset: Dataset) -> Dataset:
    """The data set with its test samples behind its training samples, all to be divided.

    Whose they are is not kept.
    """
    train, test = dataset.train, dataset.test
    together = Samples(torch.cat([train.features, test.features]), torch.cat([train.labels, test.labels]))
    return replace(
        dataset,
        train=together,
        test=together.take(torch.zeros(0, dtype=torch.int64, device=together.labels.device)),
        keys=None,
    )


def hold_out(dataset: Dataset, parts: Sequence[Ids], share: float, seed: int) -> FederatedData:
    """Give client i the samples parts[i] but for about a `share` of them, drawn at random, which
    are tested on.
    """
    shuffled = [
        generator(seed, "hold out", client=client).permutation(part) for client, part in enumerate(parts)
    ]
    # As FedProx's code: floor(0.9 n) samples are for training; one at least.
    cuts = [max(1, len(part) - ceil_share(share, len(part))) for part in parts]
    rows = np.concatenate([part[cut:] for part, cut in zip(shuffled, cuts, strict=True)])
    test = dataset.train.take(torch.from_numpy(rows).to(dataset.train.labels.device))
    owners = np.repeat(
        np.arange(len(parts)), [len(part) - cut for part, cut in zip(shuffled, cuts, strict=True)]
    )
    return divide(
        replace(dataset, test=test), [part[:cut] for part, cut in zip(shuffled, cuts, strict=True)], owners
    )
