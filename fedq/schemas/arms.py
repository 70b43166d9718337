"""Arms of all experiments with their settings and results, as tables show them."""

from datetime import datetime

from pydantic import Field

from fedcore.platform.status import Status
from fedq.schemas.base import ArmName, ExperimentId, ExperimentName, MetricName, RunId, Schema
from fedq.schemas.results import Estimate


class ArmFigures(Schema):
    """A metric of an arm over its seeds."""

    best: Estimate | None
    """Value of each run's best round, of test measures by validation as in results; null if no run has one,
    or the metric has no direction.
    """
    final: Estimate | None
    """Value of each run's last evaluated round; null if no run has one."""


class ArmSeed(Schema):
    """One run of an arm."""

    run_id: RunId
    """The run."""
    seed: int
    """Its seed."""
    status: Status
    """Its status."""
    metrics: dict[str, dict[str, float | None]] = Field(
        examples=[{"test_accuracy": {"best": 0.81, "final": 0.8}}]
    )
    """`best` and `final` by metric."""


class ArmRow(Schema):
    """An arm with its settings and results. With `fields`, the settings and metrics not asked for are
    left out.
    """

    experiment_id: ExperimentId
    """The experiment."""
    experiment_name: ExperimentName
    """Name of the experiment."""
    created_at: datetime
    """Time of submission of the experiment."""
    arm: int
    """Index of the arm in its experiment."""
    name: ArmName
    """Name of the arm."""
    status: Status
    """Combined status of its runs, as for experiments."""
    seeds: list[ArmSeed]
    """Its runs, in the order of the seeds."""
    rounds_done: int
    """Committed rounds of all runs."""
    rounds_total: int
    """Total rounds of all runs."""
    diverged: int
    """Number of diverged runs."""
    stopped: int
    """Number of runs stopped early."""
    seconds: Estimate | None
    """Wall-clock seconds of the rounds per run."""
    megabytes_sent: Estimate | None
    """Megabytes (10^6 bytes) sent in both directions per run."""
    parameters: dict[str, str | bool | int | float] = Field(examples=[{"local.lr": 0.1}])
    """Settings by dotted path, e.g. `local.lr`; absent ones are left out, lists are JSON."""
    metrics: dict[MetricName, ArmFigures]
    """Best and final value of each metric over the seeds."""
