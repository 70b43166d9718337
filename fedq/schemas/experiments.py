"""Experiments: summaries, plans, searches, and requests to edit and extend them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from fedcore.block import MAX_ROUNDS, Mode, Name, Seed, Tag
from fedcore.platform.status import Status
from fedcore.simulation.halving import Verdict
from fedq.results.html import experiment_html
from fedq.schemas.base import (
    ArmName,
    ExperimentId,
    ExperimentName,
    MetricName,
    Notes,
    Provenance,
    RequestBody,
    Schema,
    SweptSettings,
    Tags,
    UserName,
)


class Progress(Schema):
    """Progress of an experiment."""

    rounds_done: int = Field(examples=[6])
    """Committed rounds of all runs."""
    rounds_total: int = Field(examples=[8])
    """Total rounds of all runs; a diverged run counts with the rounds it completed."""
    fraction: float = Field(examples=[0.75])
    """Fraction of completed rounds, 0 to 1."""
    runs: dict[Status, int]
    """Number of runs by status, without zeros."""
    eta_s: float | None = Field(examples=[12.5])
    """Estimated remaining seconds; null while no run is running."""


class ArmSummary(Schema):
    """One point of the sweep."""

    index: int = Field(examples=[0])
    """Position in the sweep, from 0. Arm 0 is the default baseline."""
    name: ArmName
    """Name by the swept values, e.g. `momentum=0.9`; the algorithm's kind if there is no sweep."""
    settings: SweptSettings
    """Swept paths and their values."""
    rung: int | None = None
    """In a search, the round of the last rung that all runs of the arm have reached; null before
    the first.
    """
    value: float | None = None
    """Mean of the search metric over the seeds at that rung; null if a run failed, diverged or has
    no value.
    """
    verdict: Verdict | None = None
    """Decision at that rung; null while undecided."""


class ExperimentSummary(Schema):
    """An experiment, as listed."""

    id: ExperimentId
    """Opaque; sorts by time of creation."""
    name: ExperimentName
    """Name, as submitted or last edited."""
    description: str = Field(examples=["Does momentum help the clients?"])
    """Description, as submitted."""
    tags: Tags
    """Tags, as submitted or last edited."""
    status: Status
    """Combined status of the runs."""
    priority: int
    """0 to 9; higher priorities run first."""
    owner: UserName
    """Owner of the experiment."""
    created_at: datetime
    """Time of submission (UTC, as all times)."""
    updated_at: datetime
    """Time of the last change of status, or of a field that users edit."""
    started_at: datetime | None
    """Time at which a worker first started one of its runs."""
    finished_at: datetime | None
    """Time at which the last run finished."""
    error: str | None
    """Error of a failed run."""
    warning: str | None = None
    """Number of runs that succeeded and are of little use, by reason: they diverged, ended at chance
    level, or ended worse than they began; null if there are none.
    """
    starred: bool = False
    """True if users have marked it with a star."""
    archived: bool = False
    """True if it is archived: lists contain it only when asked for archived experiments."""
    progress: Progress
    """Progress over all runs."""


class Experiment(ExperimentSummary):
    """An experiment with its specification, arms and provenance."""

    notes: str = ""
    """Notes of users, in Markdown."""
    arms: list[ArmSummary]
    """Points of the sweep; a single arm if there is no sweep."""
    specification: dict[str, Any]
    """The validated specification with all defaults; it can be submitted again."""
    provenance: Provenance
    """Origin of the experiment: the version of FedQ that accepted it (`fedq`, and its git `commit`
    if known), the preset with its overrides, the experiment that it `reproduces`, and
    `specification_sha256`. Runs record the software and hardware.
    """

    missing: list[str] = Field(default=[], examples=[["there is no package ourlab-fedexp 1.2"]])
    """Installed packages and the code bundle that the service, or the owner of the experiment, lacks to
    run it again, each with how to bring it. Results are complete without them.
    """

    def _repr_html_(self) -> str:
        return experiment_html(self)


class PrivacyPlan(Schema):
    """Differential privacy of a run."""

    noise_multiplier: float
    """z, as given or as solved for `target_epsilon`."""
    epsilon: float | None
    """epsilon after the last round; null without noise."""
    delta: float
    """delta of (epsilon, delta)."""


class ArmPlan(ArmSummary):
    """One arm of a plan, with the cost of each of its runs."""

    runs: int
    """Number of runs, one per seed."""
    parameters: int
    """Number of model parameters, D."""
    local_steps: int
    """Mini-batch steps of one run, over all rounds."""
    gradients: int
    """Gradients of mini-batches in one run, over all rounds: gradients of its local
    steps, of which some algorithms need several, and full gradients at the start of rounds.
    """
    work: float
    """Counted work of one run: gradients of samples, as multiples of scoring one, and samples that are
    scored, times parameters.
    """
    bytes_up: int
    """Bytes that the clients of one run send, over all rounds."""
    bytes_down: int
    """Bytes that the clients of one run receive, over all rounds."""
    memory_bytes: int
    """Estimated memory of one run: data, server state, client state and a cohort in training."""
    exactness: str = Field(examples=["bytes and steps are exact for seed 0"])
    """Which of bytes and local steps are exact for a run that is not stopped early, and why the others are
    estimates, in words.
    """
    privacy: PrivacyPlan | None = None
    """Differential privacy of each run; null without `privacy`."""


class Stretch(Schema):
    """Stage of a search, from one rung to the next."""

    until: int
    """Last round of the stage: a rung or the final round."""
    arms: int
    """Number of arms in the stage."""


class SearchPlan(Schema):
    """Cost of a search if each rung promotes as many arms as synchronous halving.

    `asha` may promote a few more. The trials of a study all run to the last round, unless its pruner
    stops as many in any case (`successive_halving`, `hyperband`).
    """

    stretches: list[Stretch]
    """Stages in order."""
    rounds: int
    """Total rounds of all runs."""
    saving: float
    """Fraction of rounds saved, 0 to 1."""
    parallel: int | None = None
    """Number of trials of a study that are proposed at a time; null for other searches."""


class PlannedData(Schema):
    """A user's own data set."""

    dataset: str = Field(examples=["uploaded set_01k9x3zq7rh2v8m4t6w0ybe5m2"])
    """Its kind, and its id or the first characters of its digest."""
    read: dict[str, str] = Field(examples=[{"samples": "12,000 + 3,000"}])
    """Contents in words: samples, features, label, clients and what was left out; counts are
    training + test samples.
    """


class Plan(Schema):
    """Plan of a specification that was not submitted."""

    name: ExperimentName
    """Name of the experiment."""
    arms: list[ArmPlan]
    """Points of the sweep."""
    seeds: list[int]
    """Seeds of each arm."""
    runs: int
    """Number of runs: arms times seeds."""
    rounds: int
    """Total rounds of all runs. With a search or early stopping, this and all estimates are upper
    bounds.
    """
    search: "SearchPlan | None" = None
    """Savings of the search."""
    local_steps: int
    """Mini-batch steps of all runs."""
    gradients: int
    """Gradients of mini-batches in all runs."""
    bytes_up: int
    """Bytes that clients send in all runs."""
    bytes_down: int
    """Bytes that clients receive in all runs."""
    memory_bytes: int
    """Estimated memory of the largest run."""
    seconds_low: float | None = None
    """Least estimated seconds of all runs on one worker, one after another; null if unknown."""
    seconds_high: float | None = None
    """Most estimated seconds of all runs on one worker, one after another; null if unknown."""
    seconds_source: str = ""
    """Source of the estimate in words: runs with the same kind of model and engine that were seen to
    do their work at some rate; or the reason why there is none.
    """
    workers: int = 0
    """Number of active workers that serve its queue."""
    data: list[PlannedData]
    """Users' own data sets, with what was read of them."""
    warnings: list[str] = Field(examples=[["no worker serves the queue"]])
    """Reasons for which its runs would currently wait, be refused, or compute something else than
    expected.
    """
    specification: dict[str, Any]
    """The specification as validated, every default written out."""


class ExperimentExtension(RequestBody):
    """Additional rounds or seeds of an experiment."""

    rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS, examples=[120])
    """New total of communication rounds of each run (default: unchanged)."""
    seeds: list[Seed] | None = Field(default=None, max_length=1_000, examples=[[0, 1, 2, 3]])
    """Additional seeds. Existing seeds are unaffected."""


class ExperimentEdit(RequestBody):
    """Changes to an experiment. Omitted fields keep their values."""

    name: Annotated[Name, Field(min_length=1)] | None = Field(default=None, examples=["momentum again"])
    """Display name."""
    tags: list[Tag] | None = Field(default=None, max_length=32, examples=[["digits", "thesis"]])
    """Tags for filtering."""
    priority: int | None = Field(default=None, ge=0, le=9)
    """Higher priorities run first. Runs in progress yield after their current round; changes are
    polled at most ten times a second.
    """
    notes: Notes | None = Field(default=None, examples=["Momentum **helps** here."])
    """Notes in Markdown, shown on its page; an empty text removes them."""
    starred: bool | None = None
    """Mark it with a star, or remove the star."""
    archived: bool | None = None
    """Archive it, so that lists leave it out unless asked for archived experiments, or take it
    back. Runs are not affected.
    """


Users = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]


class SharedAccess(Schema):
    """Users other than the owner who have access to an experiment, a data set, a code bundle or
    pretrained weights.
    """

    owner: UserName
    """The owner, who also shares and deletes it."""
    read: list[str] = Field(examples=[["ben"]])
    """Users who may read an experiment with all its results, or read and use an upload."""
    write: list[str] = Field(examples=[["eve"]])
    """Users who may edit, control and extend an experiment, too; always empty for an upload."""


class AccessEdit(RequestBody):
    """Changes to the access of other users. Omitted fields keep their values."""

    read: Users | None = Field(default=None, examples=[["ben"]])
    """Users who may read it, by the owner of their keys; replaces the present ones. One who may change
    it may only read it then, unless `write` names them, too.
    """
    write: Users | None = Field(default=None, examples=[["eve"]])
    """Users who may edit, control and extend an experiment, too; replaces the present ones."""


class ArmArrival(Schema):
    """An arm that has reached a rung with all of its runs, and the decision about it.

    It was compared with the arms of the same rung whose `sequence` is at most `decided_by`.
    """

    sequence: int
    """Position in the order in which arms reached rungs, from 1."""
    arm: int
    """Index of the arm."""
    name: ArmName
    """Name of the arm."""
    rung: int
    """Index of the rung, from 0."""
    round: int
    """Round of the rung."""
    value: float | None
    """Mean of the metric over the seeds; null, which ranks last, if a run failed, diverged or has
    no value.
    """
    further_values: list[float | None] = Field(default_factory=list)
    """Values of `further_metrics` of a study."""
    arrived_at: datetime
    """Time at which the last run of the arm reached the rung."""
    verdict: Verdict | None
    """Decision: `promoted` to the next rung (from the last rung to the last round) or `stopped`;
    null while undecided.
    """
    rank: int | None
    """Rank among the compared arms, from 1."""
    field: int | None
    """Number of compared arms, including this one."""
    places: int | None
    """Number of arms that could be promoted; null for the median pruner of a study, by whose rule it
    depends on their values.
    """
    decided_by: int | None
    """`sequence` of the arrival that led to the decision."""
    decided_at: datetime | None
    """Time of the decision."""


class MetricDirection(Schema):
    """A metric and which values of it are better."""

    metric: MetricName
    """The metric."""
    mode: Mode
    """Direction: `min` or `max`."""


class SearchPage(Schema):
    """The search of an experiment, with a page of arrivals."""

    experiment_id: ExperimentId
    """The experiment."""
    kind: Literal["asha", "successive_halving", "study"]
    """Kind of the search."""
    metric: MetricName
    """Metric that ranks the arms."""
    mode: Mode
    """Direction of the metric: `min` or `max`."""
    eta: int | None
    """One in `eta` arms is promoted from each rung; null for a study."""
    arms: int
    """Number of arms of the sweep, or trials of the study."""
    further_metrics: list[MetricDirection] = Field(default_factory=list)
    """Further metrics of a study, with their directions."""
    pareto_front: list[int] | None = None
    """Arms of the trials that have ended and that no other is better than in one metric without
    being worse in another; null for searches with one metric.
    """
    pruner: str | None = None
    """Kind of the pruner of a study: its trials may be stopped at the rungs before the last."""
    rungs: list[int]
    """Rounds of the rungs; for a study, the rungs of its pruner and the last round."""
    rounds: int
    """Maximum rounds of an arm."""
    items: list[ArmArrival]
    """Arrivals in order of `sequence`."""
    next: int
    """Value of `after` for the next page: the last sequence of this page, or `after` if the page is
    empty. Undecided arrivals may be decided later: request them again.
    """

    def ended_trials(self) -> list[ArmArrival]:
        """The last arrivals of the trials of a study that came to their last round or were stopped,
        by trial.
        """
        last = len(self.rungs) - 1
        ended = [one for one in self.items if one.rung == last or one.verdict is Verdict.STOPPED]
        return sorted(ended, key=lambda one: one.arm)
