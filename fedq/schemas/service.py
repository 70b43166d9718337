"""State of the service, and its choices: presets, catalogue, and uploaded data sets."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from fedcore.data.description import Description
from fedq.schemas.base import Page, Schema


class QueueDepth(Schema):
    """Number of runs in a queue."""

    queue: str
    """Name of the queue."""
    queued: int
    """Runs waiting for a worker."""
    running: int
    """Runs in progress."""
    waiting: int
    """Runs waiting at a rung for the decision of a search."""
    paused: int
    """Paused runs."""
    too_large: int
    """Queued runs that need more memory than any active worker of the queue has; 0 if there are no
    workers.
    """
    rounds_left: int
    """Remaining rounds of queued and running runs."""


class GroupWorker(Schema):
    """A worker that trains shards of a run."""

    worker: str
    """Name of the worker."""
    shards: int
    """Shards that it trained in the last round."""


class WorkerGroup(Schema):
    """Workers that train one run together (`execution.shards`)."""

    run_id: str | None
    """The run; null if it belongs to another owner."""
    queue: str
    """Name of its queue."""
    shards: int
    """Shards of each round."""
    leader: GroupWorker
    """The worker that holds the run."""
    members: list[GroupWorker]
    """The workers that train shards for it."""


class Queues(Schema):
    """Queues with unfinished runs."""

    items: list[QueueDepth]
    """The queues; queues without unfinished runs are omitted."""
    groups: list[WorkerGroup] = Field(default_factory=list)
    """Runs in shards that are in progress, with their workers; at most 200."""


class Worker(Schema):
    """A worker process, as it last reported."""

    id: str
    """Name of the worker."""
    host: str
    """Host name."""
    pid: int
    """Process id."""
    queues: list[str]
    """The queues it serves."""
    device: str
    """Compute device."""
    memory_bytes: int | None
    """Memory limit for runs; null if unknown."""
    packages: list[str]
    """Installed packages with components, as "name version"."""
    started_at: datetime
    """Start time."""
    seen_at: datetime
    """Time of the last heartbeat."""
    run_id: str | None
    """The run in progress."""


class Workers(Schema):
    """Active workers."""

    items: list[Worker]
    """The workers."""


class Health(Schema):
    """Liveness of the process."""

    status: Literal["ok"] = "ok"
    """Always `ok`."""
    version: str
    """FedQ's version."""


class Check(Schema):
    """Health of a dependency."""

    ok: bool
    """True if the dependency responds."""
    detail: str
    """Version or error."""


class Readiness(Schema):
    """Readiness of the service."""

    status: Literal["ready", "degraded", "unready"]
    """`degraded`: the broker is unavailable. Requests are served and runs continue, but start up to
    a few seconds later.
    """
    checks: dict[Literal["database", "broker"], Check]
    """Checks by dependency."""


class PresetSummary(Schema):
    """A preset, as listed."""

    name: str
    """Name of the preset."""
    version: int
    """Version number, increased when the specification changes."""
    title: str
    """Short description."""
    source: str
    """Publication, table or figure that the preset follows, or a description of the
    demonstration.
    """
    departures: list[str]
    """Differences from the source."""
    sheet: str
    """Figure, table or demonstration that the preset belongs to; `fedq reproduce-paper` runs all of
    it.
    """
    panel: str
    """Panel of the figure or table; empty if there is only one."""
    small: bool
    """True for the small version, which takes a minute or two on two cores."""


class Preset(PresetSummary):
    """A preset with its specification."""

    specification: dict[str, Any]
    """The specification, without overrides."""


class PresetList(Schema):
    """All presets."""

    items: list[PresetSummary]
    """The presets, by name."""


class Kind(Schema):
    """One choice for a block of the specification."""

    kind: str
    """The value of the block's `kind`."""
    description: str
    """Description of the kind."""
    source: str | None
    """Publication that describes it."""
    defaults: dict[str, Any]
    """Default values of its fields; fields without a default are required."""
    json_schema: dict[str, Any]
    """JSON Schema of the block."""


class CatalogBlock(Schema):
    """A block of the specification with several kinds."""

    path: str
    """Dotted path of the block, as used in a sweep."""
    kinds: list[Kind]
    """Available kinds."""


class Catalog(Schema):
    """All components of a specification."""

    blocks: list[CatalogBlock]
    """Blocks with several kinds."""
    measures: list[str]
    """Valid values of `evaluation.measures`."""
    json_schema: dict[str, Any]
    """JSON Schema of the complete specification."""


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
    description: Description | None = None
    """Names and counts of what was read; null for data sets of earlier versions."""
    client_sizes: ClientSizes | None
    """Distribution of samples over clients; null if the data are not divided into clients."""
    size_bytes: int
    """Size of the stored file."""
    created_at: datetime
    """Time of the upload (UTC)."""


class BundleFileInfo(Schema):
    """A file of a code bundle."""

    name: str
    """Path in the folder."""
    size: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the content."""


class Bundle(Schema):
    """A code bundle, used as `code: sha256:...` of a specification."""

    digest: str
    """`sha256:` and the SHA-256 of the archive."""
    owner: str
    """Owner of the bundle."""
    files: list[BundleFileInfo]
    """Files, by name."""
    components: dict[str, list[str]]
    """Kinds that the bundle defines, by family (`algorithms`, `partitions`, ...)."""
    size_bytes: int
    """Size of the archive."""
    created_at: datetime
    """Time of the upload (UTC)."""


class BundlePage(Page[Bundle]):
    """A page of code bundles, newest first."""


class Weights(Schema):
    """Pretrained weights, used as `problem.model.weights: sha256:...` of a specification; or what comes
    with them: the configuration of a network, for `problem.model.configuration`, or a tokenizer, for
    `problem.dataset.tokenizer`.
    """

    digest: str
    """`sha256:` and the SHA-256 of the file."""
    owner: str
    """Owner of the weights."""
    content: Literal["weights", "configuration", "tokenizer"]
    """Content of the file."""
    tensors: int
    """Number of tensors; 0 unless the content is weights."""
    size_bytes: int
    """Size of the file."""
    created_at: datetime
    """Time of the upload (UTC)."""


class WeightsPage(Page[Weights]):
    """A page of pretrained weights, newest first."""


class DatasetPage(Page[Dataset]):
    """A page of data sets, newest first."""
