"""Uploaded data sets."""

from datetime import datetime

from fedq.schemas.base import Schema


class ClientSizes(Schema):
    """Distribution of training samples over clients."""

    smallest: int
    """Smallest number of training samples of a client."""
    median: float
    """Median number."""
    mean: float
    """Mean number."""
    largest: int
    """Largest number."""


class Dataset(Schema):
    """An uploaded data set, used as `problem.dataset: {kind: uploaded, id: ...}`."""

    id: str
    """Opaque; sorts by time of creation."""
    name: str
    """Name given at upload."""
    owner: str
    """Owner of the data set."""
    digest: str
    """SHA-256 over the stored arrays. Equal content has an equal digest, independent of the file
    format.
    """
    features: list[int]
    """Shape of one sample."""
    classes: int
    """Number of classes; 0 if labels are real numbers, for regression with the model `linear`."""
    clients: int | None
    """Number of clients; null if the data are not divided into clients and need a `partition`."""
    train_samples: int
    """Number of training samples."""
    test_samples: int
    """Number of test samples. Without test samples, results have no test loss and accuracy."""
    client_sizes: ClientSizes | None
    """Distribution of samples over clients; null if the data are not divided into clients."""
    size_bytes: int
    """Size of the stored file."""
    created_at: datetime
    """Time of the upload (UTC)."""


class DatasetPage(Schema):
    """A page of data sets, newest first."""

    items: list[Dataset]
    """The data sets."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""
