"""Partitions by draws of a Dirichlet distribution over clients or over classes."""

import numpy as np
from numpy.typing import NDArray

from fedcore.data.pools import Ids, deal, pools_of
from fedcore.data.random import generator
from fedcore.errors import SpecificationError
from fedcore.spec.partition import DirichletPartition

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
            return deal(pools, _redrawn(spec, counts, draw))
        case "per_client":
            return deal(pools, _per_client(spec, counts, draw))
        case "feddyn":
            return deal(pools, _feddyn(spec, counts, draw))


def _fednova(spec: DirichletPartition, labels: Ids, seed: int) -> list[Ids]:
    """FedNova's code draw by draw: NumPy's legacy generator shuffles each class, then divides it; all again if one is too small."""
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
            for part, piece in zip(held, np.split(pool, (np.cumsum(shares) * len(pool)).astype(np.int64)[:-1]), strict=True):
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
        f"in {ATTEMPTS} draws of Dirichlet({spec.alpha:g}) over {spec.clients} clients one always held fewer than {spec.min_samples} "
        "samples; use fewer clients, a larger alpha or a smaller min_samples",
    )


def _per_class(spec: DirichletPartition, counts: Ids, draw: np.random.Generator) -> Ids:
    """How many samples of each class each client gets, [N, C]; who holds n / N samples gets no more."""
    sizes = np.zeros((spec.clients, len(counts)), np.int64)
    for label, count in enumerate(counts):
        has_room = sizes.sum(1) < sum(counts) / spec.clients
        shares = draw.dirichlet(np.full(spec.clients, spec.alpha)) * has_room
        # Underflow at a tiny alpha can leave nothing to divide by: one client with room then takes the class.
        shares = shares / shares.sum() if shares.sum() > 0 else np.eye(spec.clients)[draw.choice(np.flatnonzero(has_room))]
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


def _shares(concentration: NDArray[np.float64], clients: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """[N, C] each client's probabilities of the classes."""
    return draw.dirichlet(concentration, clients)


def _even(samples: int, clients: int) -> Ids:
    """[N] sizes that differ by one at most."""
    return np.diff(np.arange(clients + 1) * samples // clients)


def _interleaved(sizes: Ids, draw: np.random.Generator) -> Ids:
    """Clients, each as often as its size says; every time one of those not yet done, all equally likely."""
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
    """[N, C] when the clients of `order` draw a sample each by their `shares`, among the classes that are not exhausted."""
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
    """[N, C] cumulative probabilities over the classes that have samples left; one's own, or else in proportion to what is left."""
    if not left.any():
        return shares
    open_shares = np.where(left > 0, shares, 0.0)
    open_shares = np.where(open_shares.sum(1, keepdims=True) > 0, open_shares, left)
    ends = np.cumsum(open_shares / open_shares.sum(1, keepdims=True), axis=1)
    # Rounding may leave the last end below 1, and a draw above it.
    ends[:, np.flatnonzero(left)[-1] :] = 1.0
    return ends
