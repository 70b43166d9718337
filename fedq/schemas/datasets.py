"""Users' own data sets."""

from datetime import datetime

from fedq.schemas.base import Schema


class ClientSizes(Schema):
    """How unequal the clients are, in training samples."""

    smallest: int
    """Of the client with the fewest."""
    median: float
    """Half of the clients have no more."""
    mean: float
    """Over all clients."""
    largest: int
    """Of the client with the most."""


class Dataset(Schema):
    """A user's own data set, to be trained on as `problem.dataset: {kind: uploaded, id: ...}`."""

    id: str
    """Opaque; sorts by time of creation."""
    name: str
    """As given with the upload."""
    owner: str
    """Who uploaded it."""
    digest: str
    """SHA-256 over the arrays as they are kept; the same for the same content, whatever file it came in."""
    features: list[int]
    """Shape of one sample."""
    classes: int
    """Number of classes; 0 where labels are real numbers, for regression by the model `linear`."""
    clients: int | None
    """Number of clients; null for data in one piece, which a specification divides by a `partition`."""
    train_samples: int
    """Samples to train on."""
    test_samples: int
    """Samples held out for testing; without any, test losses and accuracies are left out of the results."""
    client_sizes: ClientSizes | None
    """How unequal the clients are; null for data in one piece."""
    size_bytes: int
    """Of the file it is kept in."""
    created_at: datetime
    """When it was uploaded (UTC)."""


class DatasetPage(Schema):
    """A page of data sets, newest first."""

    items: list[Dataset]
    """The data sets."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""
