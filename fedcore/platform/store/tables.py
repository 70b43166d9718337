"""The tables.

Their classes are also the records that queries return: read them, never write to them.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Double, Enum, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column

from fedcore.platform.access import Scope, prefix_of
from fedcore.platform.provenance import DIVERGENCE, run_warning
from fedcore.platform.status import DeliveryStatus, LogLevel, RunRequest, Status
from fedcore.platform.store.clock import Timestamp
from fedcore.simulation.halving import Verdict
from fedcore.simulation.report import StopReason
from fedcore.statistics.poor_runs import RunWarning, WarningKind

Document = dict[str, Any]


def _words(kind: type[StrEnum]) -> Enum:
    return Enum(
        kind,
        native_enum=False,
        length=16,
        values_callable=lambda members: [member.value for member in members],
    )


class Base(DeclarativeBase):
    """Maps Python types to the column types both databases share."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: String(200),
        float: Double(),  # as SQLAlchemy has it from 2.1 on
        datetime: Timestamp(),
        # JSON, not JSONB: the order of a sweep's paths is the order of its arms.
        Document: JSON(),
        list[str]: JSON(),
        list[int]: JSON(),
        list[Document]: JSON(),
        Status: _words(Status),
        RunRequest: _words(RunRequest),
        StopReason: _words(StopReason),
        WarningKind: _words(WarningKind),
        Verdict: _words(Verdict),
        DeliveryStatus: _words(DeliveryStatus),
        LogLevel: _words(LogLevel),
        Scope: _words(Scope),
    }


class ExperimentRecord(Base):
    """One submitted specification."""

    __tablename__ = "experiment"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by age: its first characters are `created_at`."""
    name: Mapped[str]
    description: Mapped[str] = mapped_column(Text)
    tags: Mapped[list[str]]
    spec: Mapped[Document]
    """The whole specification, defaults filled in; not loaded in listings."""
    status: Mapped[Status]
    priority: Mapped[int]
    owner: Mapped[str]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(Text)
    """The error of one of its failed runs."""
    provenance: Mapped[Document]
    """Its origin: the preset, the version of FedQ."""
    traceparent: Mapped[str | None] = mapped_column(String(64))
    """The trace of the request that submitted it, where there was one."""
    notes: Mapped[str] = mapped_column(Text, default="")
    """Markdown; not loaded in listings."""
    starred: Mapped[bool] = mapped_column(default=False)
    archived: Mapped[bool] = mapped_column(default=False)
    """True if it is left out of listings that do not ask for archived ones."""
    parameters: Mapped[Document] = mapped_column(deferred=True, deferred_raiseload=True)
    """The settings that all arms share, by dotted path."""

    __table_args__ = (
        Index("experiment_by_status", "status", "id"),
        Index("experiment_by_name", "name", "id"),
        Index("experiment_by_owner", "owner", "id"),
    )


class TagRecord(Base):
    """The index of `ExperimentRecord.tags`."""

    __tablename__ = "experiment_tag"

    tag: Mapped[str] = mapped_column(String(64), primary_key=True)
    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True
    )

    __table_args__ = (Index("experiment_tag_by_experiment", "experiment_id"),)


class GrantRecord(Base):
    """A user other than the owner who may read an experiment, or read and use an uploaded data set,
    code bundle or file of a pretrained network; see `sharing`.
    """

    __tablename__ = "access_grant"

    resource_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """No foreign key, since it is an id of several tables: deleted with the resource by
    `sharing.end`.
    """
    grantee: Mapped[str] = mapped_column(primary_key=True)
    """The owner of keys that may read it."""
    may_change: Mapped[bool]
    """True only for experiments."""

    __table_args__ = (Index("access_grant_by_grantee", "grantee"),)


class ArmRecord(Base):
    """One point of a sweep, or one trial of a study."""

    __tablename__ = "arm"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True
    )
    arm: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parameters: Mapped[Document]
    """The arm's settings, by dotted path, besides settings of the experiment."""


class RunRecord(Base):
    """One arm with one seed."""

    __tablename__ = "run"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by arm, then by the order of the seeds."""
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiment.id", ondelete="CASCADE"))
    arm: Mapped[int]
    arm_name: Mapped[str] = mapped_column(Text)
    settings: Mapped[Document]
    """The swept paths and their values in this arm."""
    seed: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[Status]
    done: Mapped[int] = mapped_column(default=0)
    """Rounds committed."""
    rounds: Mapped[int]
    """Rounds asked for."""
    until: Mapped[int | None]
    """Under a search, the last round to execute for now."""
    held_at: Mapped[datetime | None]
    """Since when it is at the rung of round `until`, its model stored; None if it is not."""
    stop_reason: Mapped[StopReason | None]
    """Reason for stopping early."""
    seconds: Mapped[float] = mapped_column(default=0.0)
    """Time the committed rounds took."""
    queue: Mapped[str] = mapped_column(String(64))
    priority: Mapped[int]
    owner: Mapped[str]
    queued_at: Mapped[datetime]
    """When it last joined the queue: its place among runs of equal priority."""
    fence: Mapped[int] = mapped_column(default=0)
    """Counts the claims; a worker that holds an older one is refused."""
    worker: Mapped[str | None]
    """The worker that holds the lease, or held it last."""
    lease_until: Mapped[datetime | None]
    request: Mapped[RunRequest] = mapped_column(default=RunRequest.NONE)
    attempts: Mapped[int] = mapped_column(default=0)
    """Claims since the last committed round."""
    not_before: Mapped[datetime | None]
    """Time before which it may not be claimed again, after an error."""
    shortages: Mapped[int] = mapped_column(default=0)
    """How often memory ran out in it; it is then executed without a batch, with fewer clients at a
    time.
    """
    memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    """Estimated memory; 0 where unknown."""
    work: Mapped[float] = mapped_column(default=0.0)
    """Counted work of a round; 0 where unknown."""
    work_kind: Mapped[str] = mapped_column(Text, default="")
    """Runs of the same kind are expected to do their work at similar rates."""
    packages: Mapped[str | None] = mapped_column(Text)
    """The packages that its worker must have, as a sorted JSON list of "name version"; None: any."""
    checkpoint: Mapped[str | None] = mapped_column(Text)
    """Storage key of the state after round `done`."""
    model: Mapped[str | None] = mapped_column(Text)
    """Storage key of the final model; of a run at a rung, or one that went on from there, of the
    model of that round.
    """
    diverged_round: Mapped[int | None]

    error: Mapped[str | None] = mapped_column(Text)
    """The last error; of a run that is not failed, one that it has not yet got past."""
    error_of_loss: Mapped[bool] = mapped_column(default=False)
    """The error is the loss of its worker; an error of another kind says more, and stays."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    key_id: Mapped[str] = mapped_column(String(40), default="")
    """The API key it was made with; empty for none."""
    provenance: Mapped[Document]
    """How it was executed: engine, device, data, versions."""
    warning_kind: Mapped[WarningKind | None]
    """The kind of the warning in `provenance`, which queries of many runs need not read then."""
    notes: Mapped[str] = mapped_column(Text, default="")
    """Markdown."""
    figures: Mapped[Document] = mapped_column(deferred=True, deferred_raiseload=True)
    """`curves.Figures` of each measure over the committed rounds."""

    __table_args__ = (
        Index("run_by_experiment", "experiment_id", "id"),
        Index(
            "run_by_turn",
            "status",
            "queue",
            "priority",
            "owner",
            "key_id",
            "experiment_id",
            "queued_at",
            "id",
        ),
        Index("run_by_lease", "status", "lease_until"),
        Index("run_by_key", "key_id", "status"),
        Index(
            "run_by_packages",
            "status",
            "packages",
            sqlite_where=text("packages IS NOT NULL"),
            postgresql_where=text("packages IS NOT NULL"),
        ),
    )

    @property
    def divergence(self) -> str | None:
        """Where the first number was not finite; None if it did not diverge."""
        return self.provenance.get(DIVERGENCE)

    @property
    def warning(self) -> RunWarning | None:
        """Reason to distrust it, of a run that has succeeded."""
        return run_warning(self.status, self.diverged_round, self.provenance)


class SearchRecord(Base):
    """State of the search over the arms of an experiment.

    Transactions that decide, or change all of its runs, lock this row first.
    """

    __tablename__ = "search"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[str] = mapped_column(String(64))
    metric: Mapped[str] = mapped_column(String(64))
    maximise: Mapped[bool]
    eta: Mapped[int]
    """One in `eta` arms is promoted; 0 in a study, whose pruner its specification names."""
    arms: Mapped[int]
    rounds: Mapped[int]
    rungs: Mapped[list[int]]
    """Rounds of the rungs; for a study, the rungs of its pruner and the last round."""
    arrivals: Mapped[int] = mapped_column(default=0)
    """Number of arrivals recorded."""


class ArrivalRecord(Base):
    """An arm that came to a rung, and what became of it there.

    `sequence` is the order in which arms came.
    """

    __tablename__ = "search_arrival"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("search.experiment_id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(primary_key=True)
    arm: Mapped[int]
    rung: Mapped[int]
    """Counted from 0."""
    value: Mapped[float | None]
    """Mean of the metric over the arm's seeds; None where one of them failed, diverged or has no
    value.
    """
    further_values: Mapped[list[float | None] | None] = mapped_column(JSON(none_as_null=True))
    """Values of the further metrics of a study."""
    arrived_at: Mapped[datetime]
    verdict: Mapped[Verdict | None]
    rank: Mapped[int | None]
    """Rank among the arms at its rung when it was decided, from 1."""
    field: Mapped[int | None]
    """Number of arms that were ranked: arms at this rung with a sequence up to `decided_by`."""
    places: Mapped[int | None]
    """Number of arms that could be promoted."""
    decided_by: Mapped[int | None]
    """The arrival that brought the decision."""
    decided_at: Mapped[datetime | None]

    __table_args__ = (UniqueConstraint("experiment_id", "arm", "rung", name="search_arrival_once"),)


class BlockRecord(Base):
    """Rounds of one run that follow each other; see `blocks`."""

    __tablename__ = "block"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    last: Mapped[int] = mapped_column(primary_key=True)
    """The last of them."""
    rounds: Mapped[str] = mapped_column(Text)
    """A `blocks.RoundBlock` as JSON."""


class RunLogRecord(Base):
    """A log line about a run; see `telemetry`."""

    __tablename__ = "run_log"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """Number in the order in which lines were stored."""
    time: Mapped[datetime]
    """Time of the line, by the clock of the worker."""
    level: Mapped[LogLevel]
    worker: Mapped[str]
    event: Mapped[str] = mapped_column(Text)
    fields: Mapped[Document]


class ResourceRecord(Base):
    """Resources that a run used over some seconds; see `telemetry`."""

    __tablename__ = "run_resources"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """Number in the order in which samples were stored."""
    time: Mapped[datetime]
    """End of the sample, by the clock of the worker."""
    seconds: Mapped[float]
    """Time that the sample covers."""
    worker: Mapped[str]
    cpu_cores: Mapped[float]
    """Mean number of cores in use."""
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    gpu_utilisation: Mapped[float | None]
    """Fraction of the time, 0 to 1; None without a GPU, or if unknown."""
    gpu_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)


class IdempotencyRecord(Base):
    """An idempotency key of a created experiment."""

    __tablename__ = "idempotency"

    principal: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    # Deferred: the key is claimed before its experiment is made, so that of two requests one waits
    # and makes nothing.
    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiment.id", ondelete="CASCADE", deferrable=True, initially="DEFERRED")
    )

    __table_args__ = (Index("idempotency_by_experiment", "experiment_id"),)


class WorkerRecord(Base):
    """A worker process, as it last reported itself."""

    __tablename__ = "worker"

    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    queues: Mapped[list[str]]
    device: Mapped[str]
    run_id: Mapped[str | None] = mapped_column(String(40))
    """The run it holds, of several the first."""
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Memory that a run on it may take."""
    packages: Mapped[list[str]] = mapped_column(default=list)
    """The packages with components that it has, as "name version"."""
    datasets: Mapped[list[str] | None]
    """Files and folders of built-in data sets in its FEDQ_DATA_DIR; None if it has not said."""
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]

    __table_args__ = (Index("worker_by_seen", "seen_at"),)


class GroupRecord(Base):
    """A claimed run that looks for workers to train its shards."""

    __tablename__ = "run_group"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    fence: Mapped[int]
    """Fence of the claim."""
    address: Mapped[str]
    """Address, "host:port", of the worker that holds the run."""
    seats: Mapped[int]
    """The most members."""
    device: Mapped[str] = mapped_column(String)
    """Type of the device that the run is trained on: members have the same, for the same bits."""
    trained: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)
    """Number of shards of the last round, by the worker that trained them."""


class MemberRecord(Base):
    """A worker that trains shards of a run that another one holds."""

    __tablename__ = "run_group_member"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    worker: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int]
    """Fence of the run's claim."""
    lease_until: Mapped[datetime]
    connection: Mapped[str] = mapped_column(String)
    """Secret that the two workers prove to each other when they meet, another one for each membership."""


class TallyRecord(Base):
    """Count of an event, by source."""

    __tablename__ = "tally"

    source: Mapped[str] = mapped_column(primary_key=True)
    """A worker by its id, or another part of the service."""
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[float]


class ShareRecord(Base):
    """Use of a queue by an owner, as one worker recorded it; see `fair_share`."""

    __tablename__ = "share"

    queue: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    """A worker by its id."""
    seconds: Mapped[float]
    """Seconds that its rounds for the owner took."""
    lift: Mapped[float]
    """Last lift: added for the time that the owner was away."""
    clock: Mapped[float]
    """Last clock of the queue."""


class UploadRecord(Base):
    """A file of a user, kept once for each owner: a data set, a code bundle, or a file of a pretrained
    network. The file itself is in the storage.
    """

    __abstract__ = True

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by age: its first characters are `created_at`."""
    owner: Mapped[str]
    digest: Mapped[str] = mapped_column(String(71))
    """SHA-256 of the content; of bundles and weights, after `sha256:`."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    """Size of the file in the storage."""
    created_at: Mapped[datetime]
    key_id: Mapped[str] = mapped_column(String(40), default="")
    """The API key it was uploaded with; empty for none."""

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[UniqueConstraint | Index, ...]:
        """Once for each owner, and lists of an owner and of a key."""
        return (
            UniqueConstraint("owner", "digest", name=f"{cls.__tablename__}_by_content"),
            Index(f"{cls.__tablename__}_by_owner", "owner", "id"),
            Index(f"{cls.__tablename__}_by_key", "key_id"),
        )


class DatasetRecord(UploadRecord):
    """A user's own data set."""

    __tablename__ = "dataset"

    name: Mapped[str]
    content: Mapped[Document]
    """Facts that a specification needs: shape, classes, clients, counts, digest."""
    client_sizes: Mapped[Document]
    """The spread of the clients' training samples; empty for data in one piece."""


class BundleRecord(UploadRecord):
    """A bundle of user code."""

    __tablename__ = "bundle"

    files: Mapped[list[Document]]
    """Name, size and SHA-256 of each file."""
    components: Mapped[Document]
    """Kinds by family."""


class WeightsRecord(UploadRecord):
    """A file of a pretrained network."""

    __tablename__ = "weights"

    content: Mapped[str] = mapped_column(String(16))
    """`weights`, `configuration` or `tokenizer`."""
    tensors: Mapped[int]
    """Number of tensors; 0 unless the content is weights."""


class UploadUseRecord(Base):
    """An experiment that uses an upload, in one of its arms."""

    __abstract__ = True

    @declared_attr
    @classmethod
    def upload_id(cls) -> Mapped[str]:
        """The upload, in the table that the name of this one begins with."""
        upload = ForeignKey(f"{cls.__tablename__.removesuffix('_use')}.id", ondelete="CASCADE")
        return mapped_column(upload, primary_key=True)

    @declared_attr
    @classmethod
    def experiment_id(cls) -> Mapped[str]:
        """The experiment."""
        return mapped_column(ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True)

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[Index, ...]:
        """Uses of an experiment."""
        return (Index(f"{cls.__tablename__}_by_experiment", "experiment_id"),)


class DatasetUseRecord(UploadUseRecord):
    """An experiment that trains on a data set."""

    __tablename__ = "dataset_use"


class BundleUseRecord(UploadUseRecord):
    """An experiment that uses a code bundle."""

    __tablename__ = "bundle_use"


class WeightsUseRecord(UploadUseRecord):
    """An experiment that reads a file of a pretrained network."""

    __tablename__ = "weights_use"


class KeyRecord(Base):
    """An API key, of which only a digest is known."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by age: its first characters are `created_at`. What follows `key_` stands in the key
    itself.
    """
    name: Mapped[str]
    """Label for people."""
    owner: Mapped[str]
    """Owner of the resources that it creates and sees."""
    scope: Mapped[Scope]
    code: Mapped[bool] = mapped_column(default=False)
    """It may send code bundles, too."""
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the key."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Time of the last request with the key, to the minute."""
    max_waiting_runs: Mapped[int | None]
    max_running_runs: Mapped[int | None]
    max_stored_bytes: Mapped[int | None] = mapped_column(BigInteger)
    max_compute_seconds: Mapped[float | None]
    spent_seconds: Mapped[float] = mapped_column(default=0.0)
    """Seconds of rounds that its runs do not count: of runs that were deleted or went to another
    key, less what runs had taken before they came to this one.
    """

    @property
    def prefix(self) -> str:
        """The part of the key that may be shown."""
        return prefix_of(self.id)


class AuditRecord(Base):
    """A change, or an attempt at one. Names no row: it outlives them."""

    __tablename__ = "audit"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by age: its first characters are `at`."""
    at: Mapped[datetime]
    action: Mapped[str]
    target: Mapped[str]
    status: Mapped[int]
    owner: Mapped[str]
    key_id: Mapped[str] = mapped_column(String(40))
    address: Mapped[str]
    request_id: Mapped[str]

    __table_args__ = (Index("audit_by_owner", "owner", "id"), Index("audit_by_target", "target", "id"))


class WebhookRecord(Base):
    """A URL to which events are sent, and the secret that signs them."""

    __tablename__ = "webhook"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by age: its first characters are `created_at`."""
    name: Mapped[str]
    """For people: what it is for."""
    owner: Mapped[str]
    """Owner of the experiments and runs whose events are sent."""
    url: Mapped[str] = mapped_column(Text)
    kinds: Mapped[list[str]]
    """The `EventKind`s that it is sent."""
    experiment_id: Mapped[str | None] = mapped_column(String(40))
    """Only events of this experiment; None: of all. Not a foreign key: it outlives the experiment.
    """
    # Loaded only by who signs.
    secret: Mapped[str] = mapped_column(String(200), deferred=True, deferred_raiseload=True)
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    failing_since: Mapped[datetime | None]
    """The first failure since something was last delivered."""
    last_id: Mapped[str | None] = mapped_column(String(40))
    """Id of the delivery that was attempted last; its state is in the columns that follow."""
    last_status: Mapped[DeliveryStatus | None]
    last_attempt_at: Mapped[datetime | None]
    last_error: Mapped[str | None] = mapped_column(Text)
    next_attempt_at: Mapped[datetime | None]

    __table_args__ = (Index("webhook_by_owner", "owner", "id"),)


class DeliveryRecord(Base):
    """An event for one webhook: written with the change, sent later, and deleted once it has arrived
    or is given up.
    """

    __tablename__ = "webhook_delivery"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Sorts by age: its first characters are `created_at`. The receiver gets it with every
    attempt.
    """
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhook.id", ondelete="CASCADE"))
    body: Mapped[str] = mapped_column(Text)
    """JSON, byte by byte as it is signed and sent."""
    due_at: Mapped[datetime]
    """When it is to be sent; while it is being sent, when its lease expires."""
    fence: Mapped[int] = mapped_column(default=0)
    """Counts the claims; a dispatcher that holds an older one is refused."""
    failures: Mapped[int] = mapped_column(default=0)
    """Attempts that failed."""
    created_at: Mapped[datetime]

    __table_args__ = (
        Index("webhook_delivery_by_webhook", "webhook_id"),
        Index("webhook_delivery_by_turn", "due_at"),
    )


class RemovalRecord(Base):
    """Files to be removed from the storage; their rows were deleted."""

    __tablename__ = "storage_removal"

    path: Mapped[str] = mapped_column(primary_key=True)
    """A key of the storage; with a slash at its end, all keys in that folder."""
    due_at: Mapped[datetime]
    """When they are to be removed; while this is being done, when the lease expires."""
    failures: Mapped[int] = mapped_column(default=0)

    __table_args__ = (Index("storage_removal_by_turn", "due_at"),)
