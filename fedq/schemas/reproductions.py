"""Reproductions of experiments, and experiments imported from files."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, Field

from fedcore.bundles import MAX_ARCHIVE_BYTES
from fedcore.platform.status import Status
from fedcore.simulation.report import StopReason
from fedq.schemas.base import (
    ArmName,
    ExperimentId,
    MetricName,
    Provenance,
    RequestBody,
    RunId,
    Schema,
    StoredMoment,
)


class ReproductionOutcome(StrEnum):
    """Outcome of a reproduction."""

    PENDING = "pending"
    """No difference so far, and some runs are unfinished."""
    IDENTICAL = "identical"
    """Numbers of all rounds, except wall-clock times, and the final models are bit-identical."""
    DIFFERENT = "different"
    FAILED = "failed"
    """Runs of the reproduction have failed or were cancelled; all that was compared is identical."""


class RunDifference(Schema):
    """First difference between a run and its original."""

    arm: int
    """Index of its arm."""
    arm_name: ArmName
    """Name of its arm."""
    seed: int
    """Seed of the run."""
    run_id: RunId
    """The run of the reproduction."""
    original_run_id: RunId
    """The original run."""
    round: int
    """First round that differs."""
    measure: MetricName
    """First measure that differs in that round, with the index for a list (`x[3]`); or `rounds`,
    `status` or `model_sha256` if all rounds that both have are the same.
    """
    original: float | str | None
    """Value in the original; null if there is none."""
    here: float | str | None
    """Value in the reproduction."""
    relative: float | None
    """Relative difference, over the larger magnitude; null if the values are not both numbers."""


class MadeOtherwise(Schema):
    """A difference in provenance: the likely cause of different results."""

    what: str = Field(examples=["versions.torch"])
    """Path in the provenance of runs, e.g. `versions.torch`, or `specification_sha256`."""
    original: str = Field(examples=["2.15.0"])
    """Original value, as JSON."""
    here: str = Field(examples=["2.15.1"])
    """Value in the reproduction, as JSON."""
    runs: int
    """Number of runs with this difference."""


class Reproduction(Schema):
    """A reproduction compared with its original; final once `outcome` is not `pending`."""

    experiment_id: ExperimentId
    """The reproduction."""
    reproduces: ExperimentId
    """The original experiment."""
    outcome: ReproductionOutcome
    """`identical`, `different`, `failed` if runs of the reproduction did not succeed, or `pending` while
    there is no difference and runs are unfinished.
    """
    error: str | None = None
    """Why runs of the reproduction failed; null if none did."""
    runs: int
    """Number of compared runs, matched by arm and seed."""
    unmatched: int
    """Number of runs without a counterpart, because one of the experiments was extended."""
    rounds: int
    """Number of compared rounds of all runs."""
    models: int
    """Number of runs whose final models were compared by digest."""
    differing: list[RunDifference]
    """First difference of each differing run, in order of arms and seeds."""
    made_otherwise: list[MadeOtherwise]
    """Differences in provenance, which often have no effect."""


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Round = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
# One error is enough to refuse a list of a million.
Column = Field(fail_fast=True)
NumberList = Annotated[list[Number | None], Column]
NumberMatrix = Annotated[list[NumberList], Column]
Name = Annotated[str, Field(max_length=129, pattern=r"^([A-Za-z_]\w*/)?[a-z][a-z0-9_]{0,63}$")]


class ImportedRows(RequestBody):
    """Rounds of a run, one list per measure. Entry i belongs to round i + 1; null means no
    value.
    """

    train_loss: Annotated[list[Number | None], Column]
    """f(w) over the training data of all clients."""
    test_loss: Annotated[list[Number | None], Column]
    """Mean loss over the test data."""
    test_accuracy: Annotated[list[Number | None], Column]
    """Fraction of correctly classified test samples."""
    local_steps: Annotated[list[Count], Column]
    """Mini-batch steps."""
    bytes_up: Annotated[list[Count], Column]
    """Bytes the clients sent."""
    bytes_down: Annotated[list[Count], Column]
    """Bytes the clients received."""
    seconds: Annotated[list[Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]], Column]
    """Wall-clock seconds."""
    committed_at: Annotated[list[StoredMoment], Column]
    """Time at which each round was stored."""
    extra: dict[Name, Annotated[list[Number | NumberList | NumberMatrix | None], Column]] = Field(
        examples=[{"suboptimality": [0.5]}]
    )
    """Other measures by name: of each round a number, a list, or a matrix as the list of its rows."""


class ImportedRun(RequestBody):
    """A finished run: one arm with one seed."""

    id: str = Field(pattern=r"^run_[0-9a-z]{26}$", examples=["run_01k9x3zq7rh2v8m4t6w0ybe5p0"])
    """Id in the original service."""
    arm: Annotated[int, Field(strict=True, ge=0, lt=10_000)]
    """Index of its arm."""
    seed: Annotated[int, Field(strict=True)]
    """Its seed."""
    status: Literal[Status.SUCCEEDED, Status.FAILED, Status.CANCELLED]
    """Final status."""
    diverged_round: Round | None = None
    """Round in which the run diverged, its last."""
    stop_reason: StopReason | None = None
    """Reason for stopping early."""
    error: Annotated[str, Field(max_length=100_000)] | None = None
    """Error of a failed run."""
    started_at: StoredMoment | None = None
    """Time at which a worker first started the run."""
    finished_at: StoredMoment | None = None
    """Time at which the run finished."""
    provenance: Provenance
    """Software and hardware that executed the run."""
    rows: ImportedRows
    """Its rounds."""


class ImportedExperiment(RequestBody):
    """Experiment of the runs."""

    id: str = Field(pattern=r"^exp_[0-9a-z]{26}$", examples=["exp_01k9x3zq7rh2v8m4t6w0ybe5nc"])
    """Id in the original service."""
    name: str = Field(min_length=1, max_length=200, examples=["momentum on digits"])
    """Display name."""
    tags: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        max_length=32, examples=[["digits"]]
    )
    """Tags for filtering."""
    created_at: StoredMoment
    """Time of submission to the original service."""
    specification: dict[str, Any]
    """Specification as validated by the original service."""
    provenance: Provenance
    """Origin of the experiment."""


class ResultsFile(RequestBody):
    """A finished experiment with all results, without models and checkpoints."""

    format: Literal["fedq-results"]
    """Type of the file."""
    version: Literal[1]
    """Version of the format."""
    exported_at: StoredMoment
    """Time of the export."""
    experiment: ImportedExperiment
    """The experiment."""
    runs: list[ImportedRun] = Field(fail_fast=True, min_length=1, max_length=10_000)
    """Runs of each arm with each seed, in order."""
    digest: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        examples=["7ec566d5" * 8],
    )
    """SHA-256 over all other fields but `code`: JSON in the order of the file, without white space, in
    UTF-8, numbers as in Python's `json`.
    """
    code: Base64Bytes | None = Field(default=None, max_length=MAX_ARCHIVE_BYTES, examples=["cnVsZXMucHk="])
    """Archive of the code bundle that the specification names by its digest, in Base64 (default: the code
    is not in the file).
    """
