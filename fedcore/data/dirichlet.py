"""Partitions by draws of Dirichlet distributions over classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import NonNegative
from fedcore.data.base import DatasetSpec
from fedcore.data.partition import ATTEMPTS, HoldOutPartition, distribute, pools_of
from fedcore.errors import SpecificationError
from fedcore.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    from fedcore import random
    from fedcore.data.partition import Ids

    Floats = NDArray[np.float64]
else:
    np = LazyModule("numpy")
    random = LazyModule("fedcore.random")


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
        sizes = {"per_class": _redrawn, "per_client": _per_client, "feddyn": _feddyn}[self.variant]
        return distribute(pools, sizes(self, counts, draw))


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


def _redrawn(spec: DirichletPartition, counts: Ids, draw: Generator) -> Ids:
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


def _per_class(spec: DirichletPartition, counts: Ids, draw: Generator) -> Ids:
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


def _per_client(spec: DirichletPartition, counts: Ids, draw: Generator) -> Ids:
    """[N, C]: one client after another, in random order, draws all its samples."""
    shares = _shares(spec.alpha * counts / counts.sum(), spec.clients, draw)
    order = draw.permutation(spec.clients)
    return _served(shares, order.repeat(_even(counts.sum(), spec.clients)[order]), counts, draw)


def _feddyn(spec: DirichletPartition, counts: Ids, draw: Generator) -> Ids:
    """[N, C]: again and again one of the clients that want more, at random, draws one sample."""
    shares = _shares(np.full(len(counts), spec.alpha), spec.clients, draw)
    return _served(shares, _interleaved(_even(counts.sum(), spec.clients), draw), counts, draw)


def _shares(concentration: Floats, clients: int, draw: Generator) -> Floats:
    """[N, C] each client's probabilities of the classes."""
    return draw.dirichlet(concentration, clients)


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


def _served(shares: Floats, order: Ids, counts: Ids, draw: Generator) -> Ids:
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


def _cumulative(shares: Floats, left: Ids) -> Floats:
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
        shape = dataset.shape()
        if self.sizes is not None and shape.counted and self.hold_out is None:
            self._check_sum(shape.train_samples)

    def _check_sum(self, samples: int) -> None:
        if self.sizes is not None and sum(self.sizes) > samples:
            raise SpecificationError(
                "/problem/partition/sizes", f"add up to {sum(self.sizes)}, but there are {samples} samples"
            )

    def mean_samples(self, even: float) -> float:
        if self.sizes is None:
            return even
        return sum(self.sizes) / self.clients * (1 - (self.hold_out or 0.0))

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        self._check_sum(len(labels))
        draw = random.generator(seed, "partition")
        pools = pools_of(labels, draw)
        counts = np.array([len(pool) for pool in pools])
        shares = _shares(np.full(len(counts), self.alpha), self.clients, draw)
        wanted = self._wanted(len(labels), draw)
        return distribute(pools, _served(shares, _interleaved(wanted, draw), counts, draw))

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
