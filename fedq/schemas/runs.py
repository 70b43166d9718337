"""Runs and their rows."""

from datetime import datetime
from typing import Any

from fedcore.platform.status import Status
from fedcore.simulation.report import StopReason
from fedq.schemas.base import Schema


class Run(Schema):
    """One arm with one seed."""

    id: str
    """Opaque."""
    experiment_id: str
    """The experiment it belongs to."""
    arm: int
    """Index of its arm."""
    arm_name: str
    """Name of its arm."""
    settings: dict[str, Any]
    """The swept paths and their values in its arm."""
    seed: int
    """All its randomness is keyed by this."""
    status: Status
    """A run that diverged has `succeeded`: it is a finding, not a fault."""
    diverged: bool
    """The model or its loss was no longer finite; the run ended there."""
    diverged_round: int | None
    """The round in which it diverged."""
    stop_reason: StopReason | None
    """Why it has succeeded before its last round: its search did not promote its arm from a `rung`, or early stopping found no improvement
    (`patience`) or its `target` reached; null where it did not, or diverged."""
    rounds_done: int
    """Rounds committed."""
    rounds_total: int
    """Rounds asked for."""
    next_rung: int | None
    """Under a search, the round up to which it may play: its next rung, or its last round; null without a search."""
    waiting_since: datetime | None
    """Since when it has waited at its rung for what becomes of its arm."""
    queue: str
    """Only workers that serve this queue take it."""
    priority: int
    """0 to 9; higher goes first."""
    worker: str | None
    """The worker that has it now."""
    attempts: int
    """How often it was taken up, lost or failed since it last finished a round; at `FEDQ_ATTEMPTS` it is failed."""
    waits_for: str | None
    """Of a queued run: what it waits for beside its turn, as a worker of its queue or a quota of its key; null: nothing."""
    next_try_at: datetime | None
    """Of a queued run with which something went wrong: no worker takes it before; null when any may take it at once."""
    memory_bytes: int
    """What it is estimated to need of a worker's memory, rather too much than too little; 0 where that is not known."""
    error: str | None
    """Why it failed, or what went wrong last."""
    created_at: datetime
    """When it was queued first."""
    started_at: datetime | None
    """When a worker first took it up."""
    finished_at: datetime | None
    """When it ended."""
    has_model: bool
    """The final model can be fetched."""
    has_checkpoint: bool
    """A checkpoint can be fetched."""
    provenance: dict[str, Any]
    """What made it: code, versions, device, hardware, engine, precision, what the data really are, and SHA-256 digests of data and final
    model (`data_sha256`, `model_sha256`)."""


class RunPage(Schema):
    """A page of an experiment's runs, in order of arm and seed."""

    items: list[Run]
    """The runs."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""


class RoundRow(Schema):
    """One round of one run, measured after it; null where it was not evaluated, has no meaning, or was not finite."""

    round: int
    """Counted from 1."""
    train_loss: float | None
    """f(w) over the training data of all clients."""
    test_loss: float | None
    """Mean loss over the test data."""
    test_accuracy: float | None
    """Share of the test samples classified right, 0 to 1."""
    local_steps: int
    """Mini-batch steps of the clients whose work reached the server."""
    bytes_up: int
    """Bytes the clients sent."""
    bytes_down: int
    """Bytes the clients received."""
    seconds: float
    """Wall-clock time of the round on its worker."""
    extra: dict[str, Any]
    """Other measures by name: objective, suboptimality, distance, x, gradient_diversity, simulated_seconds and so on."""
    committed_at: datetime
    """When the row was stored."""


class MetricsPage(Schema):
    """Rows of one run, in order of rounds."""

    run_id: str
    """The run."""
    status: Status
    """The run's status, read before its rows: once it is final, an empty page means that all rows were seen."""
    items: list[RoundRow]
    """The rows."""
    next: int
    """Pass this as `after` to go on: the last round of this page, or `after` where the page is empty."""
