"""`problem.partition`: assignment of the samples of an undivided data set to clients."""

from typing import Annotated, Literal

from pydantic import Field

from fedcore.block import Block, ClientCount, NonNegative, Seed


class _Partition(Block):
    clients: ClientCount
    """Number of clients N."""
    seed: Seed | None = None
    """Seed of the partition of all runs (default: each run draws its own partition from its
    seed).
    """


class _Divided(_Partition):
    hold_out: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of each client's samples used for testing, drawn at random: published training and
    test samples are then divided together, as in FedProx's code (0.1). Default: test on the
    published test samples.
    """


class IidPartition(_Divided):
    """Samples are shuffled and divided evenly."""

    example = {"clients": 50, "seed": 2}

    kind: Literal["iid"]


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


class ShardsPartition(_Divided):
    """Samples sorted by label and cut into equal shards, several per client (McMahan et al.,
    2017).
    """

    example = {"clients": 100, "hold_out": 0.1}

    kind: Literal["shards"]
    shards_per_client: Annotated[int, Field(ge=1, le=10_000)] = 2
    """Number of shards per client."""


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


class ByKeyPartition(_Partition):
    """Each client holds the samples of one writer, speaking role or account.

    For data sets with such keys.

    Clients are drawn at random from those with enough samples. The test samples are those of the
    clients, and of users without training samples.
    """

    example = {"clients": 143, "min_samples": 2}

    kind: Literal["by_key"]
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Minimum number of training samples of a client."""


AnyPartition = Annotated[
    IidPartition | DirichletPartition | ShardsPartition | ClassesPerClientPartition | ByKeyPartition,
    Field(discriminator="kind"),
]
