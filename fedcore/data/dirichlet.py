"""Partitions by draws of Dirichlet distributions over classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import NonNegative
from fedcore.data.base import DatasetSpec
from fedcore.data.partition import HoldOutPartition, distribute, pools_of, redraw
from fedcore.errors import SpecificationError
from fedcore.lazy import np, random

if TYPE_CHECKING:
    from numpy.random import Generator, RandomState
    from numpy.typing import NDArray

    from fedcore.data.partition import Ids

    Floats = NDArray[np.float64]


class DirichletPartition(HoldOutPartition):
    """Classes divided unevenly over clients by draws of a Dirichlet distribution.

    `alpha` means something else in each variant.

    - `per_class` (Yurochkin et al.; FedNova, Section V; FedAWARE; NIID-Bench): each class is
      divided over the clients by one draw of Dirichlet(alpha, ..., alpha), where a client that
      already holds n / N samples gets no more; all is redrawn until no client is too small. Sizes
      are unequal.
    - `fednova` (FedNova's code): the same, drawn by NumPy's legacy generator just as there. With
      `clients: 16, alpha: 0.1, seed: 2020` on CIFAR-10, E = 2 and batches of 32 this is Table I's
      split, of 16 to 408 local steps.
    - `per_client` (Hsu et al., 2019): clients of equal size, one after another, draw their samples
      by class probabilities of their own, Dirichlet(alpha q) with q the classes' shares of the
      data; what is exhausted is drawn no more.
    - `feddyn` (FedDyn's code): the same with Dirichlet(alpha, ..., alpha), the clients taking turns
      at random.
    """

    example = {"clients": 30, "alpha": 0.1, "min_samples": 5}

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0, le=1e6)]
    """Concentration: small is heterogeneous (0.1), large is nearly iid (100)."""
    variant: Literal["per_class", "fednova", "per_client", "feddyn"] = "per_class"
    """Variant of the draws."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Minimum number of samples of a client."""

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        if self.variant == "fednova":
            return _fednova(self, labels, seed)
        draw = random.generator(seed, "partition")
        pools = pools_of(labels, draw)
        counts = np.array([len(pool) for pool in pools])
        sizes = {"per_class": _per_class, "per_client": _per_client, "feddyn": _feddyn}[self.variant]
        return distribute(pools, sizes(self, counts, draw))


def _fednova(spec: DirichletPartition, labels: Ids, seed: int) -> list[Ids]:
    """FedNova's code draw by draw: NumPy's legacy generator shuffles each class, then divides it.

    All again if one is too small.
    """
    draw = np.random.RandomState(seed)

    def parts() -> list[Ids] | None:
        held: list[list[Ids]] = [[] for _ in range(spec.clients)]
        sizes = np.zeros(spec.clients, np.int64)
        for label in np.unique(labels):
            pool = np.flatnonzero(labels == label)
            draw.shuffle(pool)
            has_room = sizes < len(labels) / spec.clients
            pieces = np.split(pool, _cuts(_shares_with_room(spec.alpha, has_room, draw), len(pool)))
            for part, piece in zip(held, pieces, strict=True):
                part.append(piece)
            sizes += np.array([len(piece) for piece in pieces])
        return [np.concatenate(part) for part in held] if sizes.min() >= spec.min_samples else None

    return redraw(spec, spec.alpha, parts)


def _per_class(spec: DirichletPartition, counts: Ids, draw: Generator) -> Ids:
    """How many samples of each class each client gets, [N, C].

    Who holds n / N samples gets no more. All again if one is too small.
    """

    def sizes() -> Ids | None:
        held = np.zeros((spec.clients, len(counts)), np.int64)
        for label, count in enumerate(counts):
            has_room = held.sum(1) < sum(counts) / spec.clients
            cuts = _cuts(_shares_with_room(spec.alpha, has_room, draw), count)
            held[:, label] = np.diff(cuts, prepend=0, append=count)
        return held if held.sum(1).min() >= spec.min_samples else None

    return redraw(spec, spec.alpha, sizes)


def _shares_with_room(alpha: float, has_room: NDArray[np.bool_], draw: Generator | RandomState) -> Floats:
    """[N] shares of a class by one draw of Dirichlet(alpha, ..., alpha), renormalised over the clients
    with room.

    At a small alpha all of these may underflow. Renormalised parts of a Dirichlet distribution are
    one themselves, so they are drawn alone. At a tiny alpha NumPy's legacy generator then still
    gives NaN, where the distribution is a random corner: one client takes the class.
    """
    for among in (np.ones_like(has_room), has_room):
        shares = np.zeros(len(has_room))
        shares[among] = draw.dirichlet(np.full(among.sum(), alpha))
        shares = np.where(has_room, shares, 0.0)
        if np.isfinite(shares).all() and shares.sum() > 0:
            return np.asarray(shares / shares.sum())
    return np.asarray(np.eye(len(has_room))[draw.choice(np.flatnonzero(has_room))])


def _cuts(shares: Floats, count: int) -> Ids:
    """[N - 1] where to cut `count` samples into these shares."""
    return (np.cumsum(shares)[:-1] * count).astype(np.int64)


def _per_client(spec: DirichletPartition, counts: Ids, draw: Generator) -> Ids:
    """[N, C]: one client after another, in random order, draws all its samples."""
    concentration = np.maximum(spec.alpha * counts / counts.sum(), np.finfo(float).tiny)
    shares = draw.dirichlet(concentration, spec.clients)
    turns = draw.permutation(spec.clients)
    order = turns.repeat(_even(counts.sum(), spec.clients)[turns])
    return _served(shares, concentration, order, counts, draw)


def _feddyn(spec: DirichletPartition, counts: Ids, draw: Generator) -> Ids:
    """[N, C]: again and again one of the clients that want more, at random, draws one sample."""
    concentration = np.full(len(counts), spec.alpha)
    shares = draw.dirichlet(concentration, spec.clients)
    order = _interleaved(_even(counts.sum(), spec.clients), draw)
    return _served(shares, concentration, order, counts, draw)


def _even(samples: int, clients: int) -> Ids:
    """[N] sizes that differ by one at most."""
    return np.diff(np.arange(clients + 1) * samples // clients)


def _interleaved(sizes: Ids, draw: Generator) -> Ids:
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


def _served(shares: Floats, concentration: Floats, order: Ids, counts: Ids, draw: Generator) -> Ids:
    """[N, C] when the clients of `order` draw a sample each by their `shares` [N, C] of
    Dirichlet(`concentration`), among the classes that are not exhausted.
    """
    sizes, left = np.zeros(shares.shape, np.int64), counts.tolist()
    cumulative = _cumulative(shares)
    for client, lot in zip(order.tolist(), draw.random(len(order)).tolist(), strict=True):
        label = int(cumulative[client].searchsorted(lot, side="right"))
        sizes[client, label] += 1
        left[label] -= 1
        if not left[label] and any(left):
            shares = _among(np.array(left) > 0, shares, concentration, draw)
            cumulative = _cumulative(shares)
    return sizes


def _among(remain: NDArray[np.bool_], shares: Floats, concentration: Floats, draw: Generator) -> Floats:
    """[N, C] the `shares` of Dirichlet(`concentration`) renormalised over the classes that `remain` [C].

    At a small concentration all of a client's may underflow. Renormalised parts of a Dirichlet
    distribution are one themselves, so they are drawn alone.
    """
    shares = np.where(remain, shares, 0.0)
    lost = np.flatnonzero(shares.sum(1) == 0)
    shares[np.ix_(lost, remain)] = draw.dirichlet(concentration[remain], len(lost))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def _cumulative(shares: Floats) -> Floats:
    """[N, C] cumulative probabilities; 1 from the last class with a share on, whatever the rounding."""
    ends = np.cumsum(shares, axis=1)
    return np.where(ends < ends[:, -1:], ends, 1.0)


class InnerDirichletPartition(HoldOutPartition):
    """Each client draws its classes from a Dirichlet distribution of its own; sizes are equal, given
    or lognormal.

    Clients that still want samples take turns at random. A client draws the class of its next
    sample from its own Dirichlet(alpha, ..., alpha); what is exhausted is drawn no more (FedLab's
    `client_inner_dirichlet`, Flower's `InnerDirichletPartitioner`). With equal sizes this is
    `dirichlet` with `variant: feddyn`.
    """

    source = (
        "Acar et al. 2021, Federated Learning Based on Dynamic Regularization (ICLR), Section 4; Zeng et al."
        " 2023, FedLab (JMLR)"
    )
    example = {"clients": 40, "alpha": 0.3, "sigma": 0.3}

    kind: Literal["inner_dirichlet"] = "inner_dirichlet"
    alpha: Annotated[float, Field(gt=0, le=1e6)]
    """Concentration: small is heterogeneous (0.1), large is nearly iid (100)."""
    sizes: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, lt=2**53)], ...],
            Field(fail_fast=True, min_length=1, max_length=10_000),
        ]
        | None
    ) = None
    """Number of samples of each client; samples beyond their sum are discarded (default: all
    samples are distributed).
    """
    sigma: NonNegative = 0.0
    """Standard deviation of the logarithm of the sizes, if they are not given; 0 makes them equal
    (FedLab's `unbalance_sgm`).
    """

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.sizes is not None and len(self.sizes) != self.clients:
            raise ValueError(
                f"`sizes` must have {self.clients} entries, one per client, not {len(self.sizes)}"
            )
        if self.sizes is not None and self.sigma:
            raise ValueError("give either `sizes` or `sigma`")
        return self

    def check(self, dataset: DatasetSpec) -> None:
        super().check(dataset)
        available = self.divided_samples(dataset.shape())
        if available is not None:
            self._check_sum(available)

    def _check_sum(self, samples: int) -> None:
        if self.sizes is not None and sum(self.sizes) > samples:
            raise SpecificationError(
                "/problem/partition/sizes", f"add up to {sum(self.sizes)}, but there are {samples} samples"
            )

    def counts(self, samples: int) -> tuple[Ids, bool]:
        return super().counts(samples) if self.sizes is None else (np.array(self.sizes, np.int64), True)

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        self._check_sum(len(labels))
        draw = random.generator(seed, "partition")
        pools = pools_of(labels, draw)
        counts = np.array([len(pool) for pool in pools])
        concentration = np.full(len(counts), self.alpha)
        shares = draw.dirichlet(concentration, self.clients)
        wanted = self._wanted(len(labels), draw)
        return distribute(pools, _served(shares, concentration, _interleaved(wanted, draw), counts, draw))

    def _wanted(self, samples: int, draw: Generator) -> Ids:
        """[N] the number of samples of each client."""
        if self.sizes is not None:
            return np.array(self.sizes, np.int64)
        if not self.sigma:
            return _even(samples, self.clients)
        logs = draw.normal(0.0, self.sigma, self.clients)
        # Relative to the largest, so that no sigma overflows; whole cumulative numbers leave no
        # sample over.
        shares = np.exp(logs - logs.max())
        ends = np.floor(np.cumsum(shares / shares.sum()) * samples + 0.5).astype(np.int64)
        ends[-1] = samples
        return np.diff(ends, prepend=0)
