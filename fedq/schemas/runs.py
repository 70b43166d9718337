"""Runs, their rounds, their logs and resource use, and the events of the event stream."""

from datetime import UTC, datetime
from typing import Any, Generic

from pydantic import Field

from fedcore.platform.status import LogLevel, Status
from fedcore.simulation.report import StopReason
from fedq.schemas.base import (
    ArmName,
    ExperimentId,
    Item,
    MetricName,
    Notes,
    Packages,
    Provenance,
    RequestBody,
    RunId,
    Schema,
    SweptSettings,
    WorkerName,
)
from fedq.schemas.experiments import ArmArrival


class BestModel(Schema):
    """The best evaluated round of a run."""

    metric: MetricName
    """The measure by which it is the best: `evaluation.best_model`, or the headline measure."""
    round: int
    """Number of the round, from 1; of equal ones the first."""
    value: float
    """Value of the measure after this round."""


class Run(Schema):
    """One arm with one seed."""

    id: RunId
    """Opaque."""
    experiment_id: ExperimentId
    """The experiment it belongs to."""
    arm: int = Field(examples=[0])
    """Index of its arm."""
    arm_name: ArmName
    """Name of its arm."""
    settings: SweptSettings
    """Swept paths and their values in the arm."""
    seed: int = Field(examples=[0])
    """Seed of all randomness of the run."""
    status: Status
    """Status of the run. A diverged run has `succeeded`: divergence is a result, not an error."""
    diverged: bool
    """True if the run ended because the model or its loss was not finite."""
    diverged_round: int | None = Field(examples=[None])
    """Round in which the run diverged."""
    warning: str | None = None
    """Set if the run succeeded and is of little use: it diverged; ended at chance level, i.e. with a test
    accuracy of at most the share of the most frequent test label; or ended worse than it began, i.e.
    with a training loss more than 5 % above that of its first evaluation.
    """
    stop_reason: StopReason | None = Field(examples=[None])
    """Reason for stopping early: the search did not promote the arm at a `rung`, or early stopping
    found no improvement (`patience`) or the `target` reached; null if the run did not stop early,
    or diverged.
    """
    rounds_done: int = Field(examples=[20])
    """Committed rounds."""
    rounds_total: int = Field(examples=[60])
    """Total rounds."""
    next_rung: int | None
    """In a search, the next rung or last round, up to which the run may proceed; null without a
    search.
    """
    waiting_since: datetime | None = Field(examples=[None])
    """Time since which the run has waited at a rung for the decision about its arm."""
    queue: str = Field(examples=["default"])
    """Queue of the run, served by certain workers."""
    priority: int
    """0 to 9; higher priorities run first."""
    worker: WorkerName | None
    """The worker that executes the run."""
    attempts: int
    """Number of attempts since the last completed round; the run fails after three."""
    waits_for: str | None
    """Reason why a queued run cannot start, e.g. no worker serves its queue or a quota is reached;
    null if there is none.
    """
    next_try_at: datetime | None = Field(examples=[None])
    """Earliest time of the next attempt of a queued run after an error; null if it can start
    immediately.
    """
    memory_bytes: int = Field(examples=[157000000])
    """Conservative estimate of the memory of the run; 0 if unknown."""
    packages: Packages
    """Installed packages that the run uses, as "name version"; its worker must have them."""
    error: str | None
    """Error of a failed run, or of the last attempt."""
    created_at: datetime
    """Time at which the run was first queued."""
    started_at: datetime | None
    """Time at which a worker first started the run."""
    finished_at: datetime | None = Field(examples=[None])
    """Time at which the run finished."""
    has_model: bool
    """True if the final model can be downloaded."""
    has_checkpoint: bool
    """True if a checkpoint can be downloaded."""
    best_model: BestModel | None = None
    """The best evaluated round, whose model can be downloaded; null while the final model cannot be
    downloaded, or if no best model was kept.
    """
    notes: str = ""
    """Notes of users, in Markdown."""
    provenance: Provenance
    """Provenance: code, versions, device, hardware, engine, precision, description of the data, and
    SHA-256 digests of data and final model (`data_sha256`, `model_sha256`), and the best model
    (`best_model`).
    """


class RunEdit(RequestBody):
    """Changes to a run. Omitted fields keep their values."""

    notes: Notes | None = Field(default=None, examples=["Oscillates from round 40 on."])
    """Notes in Markdown, shown on its page; an empty text removes them."""


class RoundRow(Schema):
    """Measurements after one round of a run; null if not evaluated, not applicable or not
    finite.
    """

    round: int
    """Number of the round, from 1."""
    train_loss: float | None = Field(examples=[2.23])
    """f(w) over the training data of all clients, or its estimate: `extra` then contains
    `train_loss_samples`, the number of training samples behind it.
    """
    test_loss: float | None = Field(examples=[2.24])
    """Mean loss over the test data."""
    test_accuracy: float | None = Field(examples=[0.25])
    """Fraction of correctly classified test samples, 0 to 1."""
    local_steps: int = Field(examples=[104])
    """Mini-batch steps of the clients whose work reached the server."""
    bytes_up: int = Field(examples=[26000])
    """Bytes the clients sent."""
    bytes_down: int = Field(examples=[26000])
    """Bytes the clients received."""
    seconds: float = Field(examples=[0.0048])
    """Wall-clock time of the round on its worker."""
    extra: dict[str, Any] = Field(examples=[{"gradient_diversity": 1.93}])
    """Other measures by name: objective, suboptimality, distance, x, gradient_diversity,
    simulated_seconds and so on.
    """
    committed_at: datetime
    """Time at which the round was stored."""


class NumberedPage(Schema, Generic[Item]):
    """A page of rounds, log lines or samples of a run, in order of their numbers."""

    run_id: RunId
    """The run."""
    status: Status
    """Status of the run, read before the items. If it is final, an empty page means that there are no
    further ones.
    """
    items: list[Item]
    """The items."""
    next: int
    """Value of `after` for the next page: the number of the last item of this page, or `after` if the
    page is empty.
    """


class MetricsPage(NumberedPage[RoundRow]):
    """A page of rounds of a run, in order."""


class LogLine(Schema):
    """An event that the worker of a run logged."""

    number: int
    """Number of the line, ascending; lines that were dropped leave gaps."""
    time: datetime
    """Time of the event by the clock of the worker."""
    level: LogLevel
    """Severity: `debug`, `info`, `warning`, `error` or `critical`."""
    worker: WorkerName
    """The worker that held the run."""
    event: str = Field(examples=["run started"])
    """The message."""
    fields: dict[str, Any] = Field(examples=[{"fence": 1}])
    """Further facts by name, e.g. `logger`; `fence` counts how often workers have started the run, and
    `exception` is a traceback.
    """

    def __str__(self) -> str:
        """Return the line as text, with a traceback below it."""
        at = self.time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts = (f"{name}={value}" for name, value in self.fields.items() if name not in _UNTOLD)
        head = " ".join((at, self.worker, self.level, self.event, *facts))
        return "\n".join(filter(None, (head, self.fields.get("exception"))))


_UNTOLD = frozenset({"logger", "exception"})
"""Fields that are not in the first line of a text."""


class LogPage(NumberedPage[LogLine]):
    """A page of the log of a run, in order."""


class ResourceSample(Schema):
    """Resources that the worker of a run used over some seconds."""

    number: int
    """Number of the sample, ascending; samples that were merged leave gaps."""
    time: datetime
    """End of the sample by the clock of the worker."""
    seconds: float = Field(examples=[10.0])
    """Time that the sample covers."""
    worker: WorkerName
    """The worker that held the run."""
    cpu_cores: float = Field(examples=[0.98])
    """Mean number of cores in use by the process that computes; of a code bundle, by all of its
    processes.
    """
    memory_bytes: int = Field(examples=[157000000])
    """Resident memory of that process; of several processes, pages that they share are counted once."""
    gpu_utilisation: float | None = Field(examples=[None])
    """Fraction of the time in which the GPU computed, 0 to 1, whatever process it was for; null
    without a GPU, or if unknown.
    """
    gpu_memory_bytes: int | None = Field(examples=[None])
    """Memory in use on the GPU, by all processes; null without a GPU."""


class ResourcePage(NumberedPage[ResourceSample]):
    """A page of the resource use of a run, in order."""


class RoundEvent(RoundRow):
    """`event: round`: a round of a run was committed."""

    run_id: RunId
    """The run."""


class StatusEvent(Schema):
    """`event: status`: the experiment, or one of its runs, changed its status."""

    experiment_id: ExperimentId
    """The experiment."""
    run_id: RunId | None
    """The run; null for the status of the experiment. The stream ends after the final status of the
    experiment.
    """
    status: Status
    """The new status. A status that lasted only briefly may be skipped."""
    rounds_done: int | None
    """Committed rounds of the run; null for the experiment."""


class DecisionEvent(ArmArrival):
    """`event: decision`: a search promoted or stopped an arm."""

    experiment_id: ExperimentId
    """The experiment."""


class HeartbeatEvent(Schema):
    """`event: heartbeat`: sent while nothing happens, to keep the connection alive."""

    time: datetime
    """Time of the service's clock."""
