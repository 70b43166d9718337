"""`problem`: which data, who holds what, and which model is trained."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedcore.spec.base import Block, NonNegative, Seed
from fedcore.spec.dataset import AnyDataset, ClientCount, ExactProblem, comes_divided
from fedcore.spec.uploaded import Content, Uploaded

SMALLEST_IMAGE = 4
"""Side of an image that two poolings leave something of."""
Width = Annotated[int, Field(ge=1, le=65_536)]


class _Partition(Block):
    clients: ClientCount
    """Number of clients N."""
    seed: Seed | None = None
    """Fixes the partition over all runs; absent, each run draws its own from its seed."""


class IidPartition(_Partition):
    """Samples shuffled and dealt out evenly."""

    kind: Literal["iid"]


class DirichletPartition(_Partition):
    """Each class divided over the clients by one draw of Dirichlet(alpha, ..., alpha); redrawn until no client is too small.

    The per-class form of Yurochkin et al. and FedNova, Section V: a client that already holds n / N samples gets no more.
    """

    kind: Literal["dirichlet"]
    alpha: Annotated[float, Field(gt=0, le=1e6)]
    """Concentration: small is heterogeneous (0.1), large is nearly iid (100)."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """The fewest samples any client may hold."""


class ShardsPartition(_Partition):
    """Samples sorted by label and cut into equal shards, each client dealt some (McMahan et al., 2017)."""

    kind: Literal["shards"]
    shards_per_client: Annotated[int, Field(ge=1, le=10_000)] = 2
    """Shards that each client is dealt."""


class ClassesPerClientPartition(_Partition):
    """Each client holds a fixed number of classes, with power-law (lognormal) sizes, as FedProx, Section 5.1."""

    kind: Literal["classes_per_client"]
    classes: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Classes that each client holds."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """The fewest samples any client may hold."""
    sigma: NonNegative = 2.0
    """Deviation of the logarithm of the sizes; 0 makes them equal."""


AnyPartition = Annotated[
    IidPartition | DirichletPartition | ShardsPartition | ClassesPerClientPartition,
    Field(discriminator="kind"),
]


class _Regularised(Block):
    l2: NonNegative = 0.0
    """Adds l2 |theta|^2 / 2 to every client's loss."""


class Linear(_Regularised):
    """Affine map with squared error 1/2 |W z + b - t|^2; t is the one-hot label, or the label itself where it is a real number."""

    kind: Literal["linear"]


class Logistic(_Regularised):
    """Multinomial logistic regression (softmax, cross-entropy); convex."""

    kind: Literal["logistic"]


class Mlp(_Regularised):
    """Fully connected layers with ReLU, cross-entropy."""

    kind: Literal["mlp"]
    hidden: Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)] = (200,)
    """Widths of the hidden layers."""


class Cnn(_Regularised):
    """The CNN of McMahan et al. (2017): 5 x 5 convolutions with 2 x 2 max-pooling, one hidden dense layer, cross-entropy."""

    kind: Literal["cnn"]
    channels: Annotated[tuple[Width, Width], Field()] = (32, 64)
    """Channels of the two convolutions."""
    hidden: Width = 512
    """Width of the dense layer."""
    norm: Literal["none", "group"] = "none"
    """`group` puts group norm after each convolution."""

    @field_validator("norm", mode="before")
    @classmethod
    def _no_batch_norm(cls, value: object) -> object:
        if value in ("batch", "batch_norm"):
            raise ValueError("batch norm is refused: averaging running statistics is wrong under heterogeneity; use 'group'")
        return value


AnyModel = Annotated[Linear | Logistic | Mlp | Cnn, Field(discriminator="kind")]


class Problem(Block):
    """The data set, its partition over clients and the model; an exact problem is all three at once."""

    dataset: AnyDataset
    """The data."""
    partition: AnyPartition | None = None
    """Who holds what; for data that come in one piece, and only for those."""
    model: AnyModel | None = None
    """What is trained; an exact problem has none."""

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        divided = comes_divided(self.dataset)
        if divided and self.partition is not None:
            raise ValueError(f"{self.dataset.kind} comes divided into clients; leave `partition` out")
        if not divided and self.partition is None:
            raise ValueError(f"{self.dataset.kind} comes in one piece; give a `partition` to divide it over clients")
        exact = isinstance(self.dataset, ExactProblem)
        if exact and self.model is not None:
            raise ValueError(f"{self.dataset.kind} is its own model; leave `model` out")
        if not exact and self.model is None:
            raise ValueError(f"give a `model` to train on {self.dataset.kind}")
        if isinstance(self.model, Cnn) and self.dataset.kind == "synthetic":
            raise ValueError("cnn needs images; synthetic features are vectors of 60: use logistic or mlp")
        if isinstance(self.dataset, Uploaded):
            _check_uploaded(self.dataset.known, self.model, self.partition)
        return self


def _check_uploaded(content: Content, model: AnyModel | None, partition: AnyPartition | None) -> None:
    """What is certain by the kind for other data: that features are images, and that labels are classes."""
    if isinstance(model, Cnn) and (len(content.features) != 3 or min(content.features[1:]) < SMALLEST_IMAGE):
        raise ValueError(
            f"cnn needs images [channels, height, width] of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE}; "
            f"the uploaded samples have shape {list(content.features)}"
        )
    if content.classes:
        return
    if model is not None and model.kind != "linear":
        raise ValueError("the uploaded labels are real numbers: use the model `linear`, or upload integers 0..C-1 to classify")
    if partition is not None and partition.kind in ("dirichlet", "classes_per_client"):
        raise ValueError(f"{partition.kind} divides classes, and the uploaded labels are real numbers: use `iid` or `shards`")
