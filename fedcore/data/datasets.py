"""`problem.dataset`: the data sets."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedcore.block import MAX_CLIENTS, Block, ClientCount, NonNegative, Seed
from fedcore.data.exact import ExactProblem, LeastSquares, Quadratic

Count = Annotated[int, Field(ge=0, lt=2**53)]


class UploadedContent(Block):
    """Description of an uploaded data set, with the digest that makes runs reproducible."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 over the stored arrays."""
    features: Annotated[
        tuple[Annotated[int, Field(ge=1, lt=2**53)], ...], Field(fail_fast=True, min_length=1, max_length=8)
    ]
    """Shape of one sample."""
    classes: Count
    """Number of classes; 0 if labels are real numbers, for regression."""
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None
    """Number of clients N; null if the data are not divided into clients and need a `partition`."""
    train_samples: Annotated[int, Field(ge=1, lt=2**53)]
    """Number of training samples."""
    test_samples: Count
    """Number of test samples. Without test samples, there is no test loss and accuracy."""


class Uploaded(Block):
    """A data set uploaded to the service: features, labels and, optionally, the client of each
    sample.
    """

    example = {
        "id": "set_01k9x3zq7rh2v8m4t6w0ybe5m2",
        "content": {
            "digest": "7ec566d5c4ce5456f6153d7f97c2c1810746d769ac962f1c75009b1ac60760db",
            "features": [1, 28, 28],
            "classes": 10,
            "clients": 40,
            "train_samples": 12000,
            "test_samples": 3000,
        },
    }

    kind: Literal["uploaded"]
    id: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[0-9a-z_]+$")] | None = None
    """Data set id, returned by `POST /v1/datasets`; omitted for a local file."""
    content: UploadedContent | None = None
    """Description of the content. The service sets it from the id and ignores other values."""

    @model_validator(mode="after")
    def _is_described(self) -> Self:
        if self.content is None:
            raise ValueError(
                "the content of the uploaded data set is unknown: submit to the service that stores it, or"
                " use the block from fedcore.platform.uploads.local.keep(file)"
            )
        return self

    @property
    def known(self) -> UploadedContent:
        """The content, which validation guarantees."""
        assert self.content is not None
        return self.content


class Synthetic(Block):
    """Synthetic(alpha, beta) of FedProx, Section 5.1: softmax labels over 60 Gaussian features, one
    distribution per client.
    """

    example = {"seed": 7}

    kind: Literal["synthetic"]
    alpha: NonNegative = 1.0
    """Deviation of the clients' model means u_k: how much the clients' true models differ."""
    beta: NonNegative = 1.0
    """Deviation of the clients' feature means B_k: how much the clients' inputs differ."""
    iid: bool = False
    """Use one model and one input distribution for all clients; alpha and beta are then ignored."""
    clients: ClientCount = 30
    """Number of clients N."""
    seed: Seed | None = None
    """Seed of the data of all runs (default: each run draws its own data from its seed)."""


class Digits(Block):
    """The 1,797 real handwritten digits (8 x 8) that ship with scikit-learn.

    One in five held out for testing.
    """

    kind: Literal["digits"]


class Mnist(Block):
    """MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28."""

    kind: Literal["mnist"]
    standardise: Literal["whole", "pixel"] = "whole"
    """Standardise by mean and deviation of all pixels together, or per pixel over training and test
    images, as in FedProx's code.
    """


class FashionMnist(Block):
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothing, 28 x 28."""

    kind: Literal["fashion_mnist"]


class Emnist(Block):
    """EMNIST (Cohen et al., 2017), 28 x 28, one of its published splits."""

    example = {"split": "letters"}

    kind: Literal["emnist"]
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced"
    """Published split: `balanced`, `bymerge` and `byclass` contain all characters, the others a
    part.
    """


class Cifar10(Block):
    """CIFAR-10: 50,000 training and 10,000 test colour images, 32 x 32."""

    kind: Literal["cifar10"]
    augmentation: Literal["none", "crop_flip"] = "none"
    """`crop_flip`: in each local step images are padded by 4, cropped at random and flipped at
    random (FedNova, FedAWARE).
    """


class Femnist(Block):
    """FEMNIST (Caldas et al., LEAF, 2018): handwritten characters by writer, 28 x 28, from LEAF's
    JSON files.
    """

    example = {"classes": "a-j"}

    kind: Literal["femnist"]
    classes: Literal["all", "a-j"] = "all"
    """All 62 characters, or the ten lower-case letters a to j (FedProx, Section 5.1)."""


class Shakespeare(Block):
    """Shakespeare's plays by speaking role: predict the next character from 80, of an alphabet of
    80 (McMahan et al., 2017).
    """

    kind: Literal["shakespeare"]
    form: Literal["leaf", "text"] = "leaf"
    """LEAF's JSON files, or a plain text of the plays with the name of the speaker before each
    speech.
    """


class Sent140(Block):
    """Sentiment140 (Go et al., 2009) by account: tweets of 25 words with GloVe vectors of 300, from
    LEAF's JSON files.
    """

    kind: Literal["sent140"]


AnyDataset = Annotated[
    Synthetic
    | Digits
    | Mnist
    | FashionMnist
    | Emnist
    | Cifar10
    | Femnist
    | Shakespeare
    | Sent140
    | Uploaded
    | Quadratic
    | LeastSquares,
    Field(discriminator="kind"),
]

KeyedDataset = Femnist | Shakespeare | Sent140
"""Data sets that record the owner of each sample, for `by_key`."""


def comes_divided(dataset: AnyDataset) -> bool:
    """True if a data set comes divided into clients; uploaded data are if they name clients."""
    if isinstance(dataset, Uploaded):
        return dataset.known.clients is not None
    return isinstance(dataset, Synthetic | ExactProblem)


def client_count(dataset: AnyDataset) -> int:
    """Number of clients N of a data set that comes divided into clients."""
    if isinstance(dataset, Synthetic):
        return dataset.clients
    if isinstance(dataset, Uploaded):
        assert dataset.known.clients is not None
        return dataset.known.clients
    assert isinstance(dataset, ExactProblem)
    if dataset.clients:
        return len(dataset.clients)
    assert dataset.generate is not None
    return dataset.generate.clients


class DataShape(NamedTuple):
    """Shape of one sample, and number of samples."""

    features: tuple[int, ...]
    classes: int
    """0 where labels are real numbers."""
    train_samples: int
    symbols: int = 0
    """Features are whole numbers below it: characters or words; 0 where they are real numbers."""
    embedding: int = 0
    """Length of the fixed vector that stands for each symbol; 0 where there is none."""

    @property
    def outputs(self) -> int:
        """Numbers that a model gives for one sample: a score per class, or the one that is
        regressed.
        """
        return self.classes or 1


_SHAPES = {
    "digits": DataShape((1, 8, 8), 10, 1_437),
    "mnist": DataShape((1, 28, 28), 10, 60_000),
    "fashion_mnist": DataShape((1, 28, 28), 10, 60_000),
    "cifar10": DataShape((3, 32, 32), 10, 50_000),
    # What files of LEAF hold is known only once they are read: as many samples as in FedProx, Table
    # 1.
    "femnist": DataShape((1, 28, 28), 62, 18_345),
    "shakespeare": DataShape((80,), 80, 517_106, symbols=80),
    "sent140": DataShape((25,), 2, 40_783, symbols=30_000, embedding=300),
}
_EMNIST = {
    "balanced": (47, 112_800),
    "byclass": (62, 697_932),
    "bymerge": (47, 697_932),
    "digits": (10, 240_000),
    "letters": (26, 124_800),
    "mnist": (10, 60_000),
}
SYNTHETIC_FEATURES, SYNTHETIC_CLASSES = 60, 10
_SYNTHETIC_MEAN_SAMPLES = 408
"""50 + E[lognormal(4, 2)], the part held for training: for estimates only."""


def data_shape(dataset: AnyDataset) -> DataShape:
    """Shape of one sample, number of classes and, where it is known beforehand, of training
    samples; else what to expect.
    """
    if isinstance(dataset, Synthetic):
        return DataShape((SYNTHETIC_FEATURES,), SYNTHETIC_CLASSES, _SYNTHETIC_MEAN_SAMPLES * dataset.clients)
    if isinstance(dataset, Emnist):
        return DataShape((1, 28, 28), *_EMNIST[dataset.split])
    if isinstance(dataset, Femnist) and dataset.classes != "all":
        return _SHAPES["femnist"]._replace(classes=10)
    if isinstance(dataset, Uploaded):
        return DataShape(dataset.known.features, dataset.known.classes, dataset.known.train_samples)
    if isinstance(dataset, ExactProblem):
        return DataShape((dataset.dim,), 0, client_count(dataset))
    return _SHAPES[dataset.kind]
