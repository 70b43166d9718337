"""Partitions: assignment of the samples of an undivided data set to clients (`problem.partition`)."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.block import Block, ClientCount, NonNegative, Seed
from fedcore.errors import SpecificationError
from fedcore.families import Family
from fedcore.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    from fedcore import random

    Ids = NDArray[np.int64]
    Floats = NDArray[np.float64]
else:
    np = LazyModule("numpy")
    random = LazyModule("fedcore.random")

ATTEMPTS = 1_000
"""Draws before the minimum size is given up."""
MAX_EXPONENT = 700.0
"""Of a client's mean number of samples: the exponential of more exceeds a float."""
_MAX_LOG = 40.0
"""More than any data set has samples, and its exponential is still an exact integer."""


class Partition(Block):
    """Assignment of samples to clients."""

    takes_real_labels: ClassVar[bool] = False
    """True if labels need not be classes."""
    by_owner: ClassVar[bool] = False
    """True if each client holds the samples of one owner, for data that record the owner."""

    if TYPE_CHECKING:
        kind: str
    clients: ClientCount
    """Number of clients N."""
    seed: Seed | None = None
    """Seed of the partition of all runs (default: each run draws its own partition from its
    seed).
    """

    def part_count(self) -> int:
        """Number of parts into which samples are cut."""
        return self.clients

    def least_samples(self) -> int:
        """Minimum number of samples of a part."""
        return int(getattr(self, "min_samples", 1))

    def mean_samples(self, even: float) -> float:
        """Mean number of training samples of a client, if all data are `even` samples each."""
        return even

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        """The samples of each client; `labels` and `keys` [n], the owners of the samples."""
        raise NotImplementedError


class _Divided(Partition):
    hold_out: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of each client's samples used for testing, drawn at random: published training and
    test samples are then divided together, as in FedProx's code (0.1). Default: test on the
    published test samples.
    """


def partition(spec: Partition, labels: Ids, seed: int, keys: Ids | None = None) -> list[Ids]:
    """Each client's sample indices into `labels` [n].

    No sample occurs twice, and no client is empty. `keys` [n] are the owners of the samples.

    Raises SpecificationError if the data cannot be divided as specified.
    """
    parts = spec.parts(labels, seed if spec.seed is None else spec.seed, keys)
    fewest, least = min(map(len, parts)), spec.least_samples()
    if fewest < least:
        detail = (
            f"one client would hold {fewest} of the {len(labels)} samples, fewer than {least}; use fewer"
            " clients"
        )
        raise SpecificationError("/problem/partition/clients", detail)
    return parts


def pools_of(labels: Ids, draw: Generator) -> list[Ids]:
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


class IidPartition(_Divided):
    """Samples are shuffled and divided evenly."""

    takes_real_labels = True
    example = {"clients": 50, "seed": 2}

    kind: Literal["iid"]

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        draw = random.generator(seed, "partition")
        return list(np.array_split(draw.permutation(len(labels)), self.clients))


class DirichletPartition(_Divided):
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

    kind: Literal["dirichlet"]
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


class ShardsPartition(_Divided):
    """Samples sorted by label and cut into equal shards, several per client (McMahan et al.,
    2017).
    """

    takes_real_labels = True
    example = {"clients": 100, "hold_out": 0.1}

    kind: Literal["shards"]
    shards_per_client: Annotated[int, Field(ge=1, le=10_000)] = 2
    """Number of shards per client."""

    def part_count(self) -> int:
        return self.clients * self.shards_per_client

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        draw = random.generator(seed, "partition")
        by_label = np.argsort(labels, kind="stable")
        count = self.clients * self.shards_per_client
        # As `array_split` has it: the first few have one more.
        ends = np.arange(1, count + 1) * (len(labels) // count) + np.minimum(
            np.arange(1, count + 1), len(labels) % count
        )
        dealt = draw.permutation(count).reshape(self.clients, self.shards_per_client)
        sizes = np.diff(ends, prepend=0)
        return slices(by_label, (ends - sizes)[dealt], sizes[dealt])


class ClassesPerClientPartition(_Divided):
    """Each client holds a fixed number of classes, with power-law (lognormal) sizes, as FedProx,
    Section 5.1.

    Client u holds the classes u, u + 1, ... modulo their number. By default, all data are
    distributed: a client's part of each of its classes is proportional to lognormal(0, sigma), as
    in FedProx's code for MNIST on 1,000 devices. With `mean`, a client holds min_samples +
    lognormal(mean, sigma) samples, the same of each of its classes, as in its code for FEMNIST on
    200 devices (`min_samples: 5, mean: 4, sigma: 1`).
    """

    example = {"clients": 200, "seed": 1, "classes": 3, "sigma": 1.0}

    kind: Literal["classes_per_client"]
    classes: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Number of classes per client."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Minimum number of samples of a client."""
    sigma: NonNegative = 2.0
    """Standard deviation of the logarithm of the sizes; 0 makes them equal."""
    mean: Annotated[float, Field(ge=0, le=20)] | None = None
    """Mean of the logarithm of the sizes; samples not held by any client are discarded (default:
    distribute all data).
    """

    def mean_samples(self, even: float) -> float:
        if self.mean is None:
            return even
        drawn = self.min_samples + exp(min(self.mean + self.sigma**2 / 2, MAX_EXPONENT))
        return min(even, drawn * (1 - (self.hold_out or 0.0)))

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        """The same few of each class, then a lognormal share of what is left of it."""
        draw = random.generator(seed, "partition")
        pools = pools_of(labels, draw)
        wanted = (np.arange(self.clients)[:, None] + np.arange(self.classes)) % len(pools)
        sizes = np.zeros((self.clients, len(pools)), np.int64)
        np.put_along_axis(sizes, wanted, _spread(self.min_samples, self.classes), axis=1)
        spare = _spare(self, pools, sizes)
        if self.mean is not None:
            drawn = self.min_samples + np.exp(
                np.minimum(draw.normal(self.mean, self.sigma, self.clients), _MAX_LOG)
            ).astype(np.int64)
            each = (drawn[:, None] + np.arange(self.classes)[::-1]) // self.classes
            np.put_along_axis(sizes, wanted, np.maximum(1, each), axis=1)
            _spare(self, pools, sizes)
            return distribute(pools, sizes)
        logs = np.where(sizes > 0, draw.normal(0.0, self.sigma, sizes.shape), -np.inf)
        # Relative to the largest, so that no sigma overflows; a class without holders has only zeros.
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


def _spread(total: int, parts: int) -> Ids:
    """`total` as `parts` nearly equal whole numbers, at least one each."""
    return np.maximum(1, np.diff(np.linspace(0, total, parts + 1).astype(np.int64)))


class ByKeyPartition(Partition):
    """Each client holds the samples of one writer, speaking role or account.

    For data sets with such keys.

    Clients are drawn at random from those with enough samples. The test samples are those of the
    clients, and of users without training samples.
    """

    by_owner = True
    example = {"clients": 143, "min_samples": 2}

    kind: Literal["by_key"]
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Minimum number of training samples of a client."""

    def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
        assert keys is not None
        draw = random.generator(seed, "partition")
        sizes = np.bincount(keys)
        enough = np.flatnonzero(sizes >= self.min_samples)
        if len(enough) < self.clients:
            raise SpecificationError(
                "/problem/partition/clients",
                f"{len(enough)} have at least {self.min_samples} training samples: use at most that many"
                " clients",
            )
        chosen = np.sort(draw.choice(enough, self.clients, replace=False))
        held = np.split(np.argsort(keys, kind="stable"), np.cumsum(sizes)[:-1])
        return [held[key] for key in chosen]


PARTITIONS = Family(
    "partitions",
    Partition,
    (
        IidPartition,
        DirichletPartition,
        ShardsPartition,
        ClassesPerClientPartition,
        ByKeyPartition,
    ),
)

AnyPartition = Annotated[Partition, PARTITIONS]
