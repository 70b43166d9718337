"""Results of experiments, and published numbers and claims compared with them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedcore.platform.status import Status
from fedcore.statistics.best_set import ArmVerdict
from fedcore.statistics.inequalities import ClaimOutcome
from fedq.results.frames import Frame, Table, columns_of, list_lines
from fedq.results.html import results_html
from fedq.results.presentation import ComparedFigure, comparison_text
from fedq.schemas.base import (
    ArmName,
    Departures,
    EventPosition,
    ExperimentId,
    ExperimentName,
    MetricName,
    PresetName,
    Provenance,
    Schema,
    Source,
    SweptSettings,
)

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Estimate(Schema):
    """Statistics of a value over the seeds of an arm."""

    n: int = Field(examples=[3])
    """Number of seeds."""
    mean: float = Field(examples=[0.82])
    """Mean over the seeds."""
    std: float | None = Field(examples=[0.014])
    """Sample standard deviation (n - 1); null for a single seed."""
    low: float | None = Field(examples=[0.785])
    """Lower end of the 95 % confidence interval of the mean (Student's t); null for a single
    seed.
    """
    high: float | None = Field(examples=[0.855])
    """Upper end of the interval."""


class MetricResult(Schema):
    """One metric of one arm; a statistic is null if no run has a value."""

    best: Estimate | None
    """Value of each run's best round, e.g. the highest accuracy or lowest loss; of a test measure, in runs
    with validation samples, the value in the round that is best by validation. Null for a metric without
    a direction.
    """
    final: Estimate | None
    """Value of each run's last evaluated round. A diverged run counts only if its last value is
    finite.
    """
    area: Estimate | None = None
    """Area under each run's curve divided by the number of rounds, i.e. its mean from the first to
    the last evaluated round with linear interpolation. Diverged runs have none.
    """


class ArmBesideOthers(Schema):
    """An arm beside the best of the others, or beside the baseline if there is one."""

    seeds: int = Field(examples=[3])
    """Seeds for which the arm has a figure, or has diverged."""
    diverged: int = Field(examples=[0])
    """Of these, the seeds in which it diverged."""
    verdict: ArmVerdict | None
    """`best`: better than all others; `among_best`: it may be the best, or equal to it; `worse`: another
    arm is better; beside a baseline `better`, `worse`, or `unclear`, and null for the baseline itself;
    `diverged`: in a seed or more, and so not in the set; `too_few_seeds`; `not_compared`: it has fewer
    than two seeds in common with others, was stopped by a search, or has other data; `reference`: it is a
    line of reference, with which the others do not compete.
    """
    words: str = Field(examples=["may be best"])
    """The verdict in words."""
    difference: float | None = Field(examples=[0.013])
    """Difference from the best of the others, or from the baseline, in the unit of the metric; null without
    a comparison.
    """
    low: float | None = Field(examples=[-0.004])
    """Lower end of its interval. The intervals of all arms cover together, and the verdicts are their
    signs.
    """
    high: float | None = Field(examples=[0.031])
    """Upper end of the interval."""


class BestArms(Schema):
    """The arms that may be the best by a figure of a metric: multiple comparisons with the best, blocked by
    seed (Hsu 1984), of the runs that have ended.
    """

    metric: MetricName
    """The metric: that of the target, the first that was asked for, or the main one of the experiment."""
    by: ComparedFigure = "final"
    """The figure: a run's `final` value, its `best`, its mean over the rounds (`area`), or what it spent
    until it reached the target (`rounds`, `megabytes`, `simulated_seconds`).
    """
    arms: list[int] = Field(examples=[[0, 3]])
    """Positions in `arms` of the results of those that may be the best; empty with too few seeds."""
    baseline: int | None = None
    """Position of the arm that the others are beside; null: each is beside the best of the others."""
    beside: list[ArmBesideOthers]
    """Each arm beside the best of the others, in the order of the arms."""
    seeds: int = Field(examples=[3])
    """Seeds that at least two arms have."""
    seeds_to_decide: int | None = Field(examples=[9])
    """Number of seeds at which the best arm would be told from the others, if they differ as they seem
    to; null if it is told already, or never with 1,000.
    """
    says: str = Field(examples=["scaffold is the best arm in final test accuracy (95% confidence, 5 seeds)."])
    """The conclusion in words."""


class Curve(Schema):
    """A metric over rounds. Entry i of every list belongs to the same round."""

    rounds: list[int] = Field(examples=[[1, 2]])
    """Rounds evaluated by at least one run. If there are more than the requested points, only ends
    and extremes are kept.
    """
    megabytes: list[float] = Field(examples=[[0.052, 0.104]])
    """Megabytes (10^6 bytes) sent in both directions up to the round, mean over the runs in `n`."""
    simulated_seconds: list[float | None] = Field(examples=[[None, None]])
    """Seconds on the simulated clock up to the round, mean over the runs in `n`; null without
    `systems.devices`.
    """
    epsilon: list[float | None] = Field(examples=[[None, None]])
    """epsilon of differential privacy up to the round; null without `privacy` or without noise."""
    mean: list[float] = Field(examples=[[0.24, 0.29]])
    """Mean over the runs."""
    std: list[float | None] = Field(examples=[[0.016, 0.049]])
    """Sample standard deviation over the runs; null for a single run."""
    low: list[float | None] = Field(examples=[[0.2, 0.168]])
    """Lower end of the 95 % confidence interval of the mean; null for a single run."""
    high: list[float | None] = Field(examples=[[0.28, 0.412]])
    """Upper end of the interval."""
    n: list[int] = Field(examples=[[3, 3]])
    """Number of runs with a value."""


class Target(Schema):
    """Target value of a metric."""

    metric: MetricName
    """A metric with a direction (higher or lower is better)."""
    value: float = Field(examples=[0.9])
    """Value to reach: the minimum, or the maximum for a metric where lower is better."""


class TargetResult(Schema):
    """Cost of reaching the target, up to the first evaluated round that reaches it."""

    runs: int = Field(examples=[3])
    """Number of runs of the arm."""
    reached: int = Field(examples=[3])
    """Number of runs that reached the target."""
    missed: int = Field(examples=[0])
    """Number of ended runs that did not reach it; the others are unfinished."""
    rounds: Estimate | None
    """Rounds to the target. A run that has not reached it counts with the rounds it has done, so the mean is
    a lower bound, without deviation and interval, unless all that have started reached it.
    """
    megabytes: Estimate | None
    """Megabytes (10^6 bytes) sent in both directions to the target, as for `rounds`."""
    simulated_seconds: Estimate | None
    """Seconds on the simulated clock to the target, as for `rounds`; null without `systems.devices`."""
    seconds: Estimate | None
    """Wall-clock seconds of the rounds to the target, as for `rounds`."""


class ArmResult(Schema):
    """Results of one arm over its seeds."""

    index: int = Field(examples=[0])
    """Position in the sweep, from 0."""
    name: ArmName
    """Name of the arm."""
    reference: bool = False
    """True for a line of reference, such as `pooled`, with which the others do not compete."""
    settings: SweptSettings
    """Swept paths and their values."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Settings of the arm by dotted path, besides the settings that all arms share."""
    seeds: list[int]
    """Seeds whose runs have completed rounds."""
    runs: dict[Status, int]
    """Number of runs by status. The results are final once all have `succeeded`."""
    diverged: int = Field(examples=[0])
    """Number of diverged runs."""
    divergence: str | None = None
    """Client, local step and round where the first of them met a number that is not finite."""
    warning: str | None = None
    """Number of runs that diverged, ended at chance level, or ended worse than they began; null if there
    are none.
    """
    stopped: int = Field(examples=[0])
    """Number of runs stopped early, at a rung or by early stopping. Their results cover the
    completed rounds.
    """
    rounds_done: int = Field(examples=[180])
    """Committed rounds of all runs."""
    local_steps: Estimate | None
    """Mini-batch steps per run so far."""
    megabytes_up: Estimate | None
    """Megabytes (10^6 bytes) sent by the clients per run."""
    megabytes_down: Estimate | None
    """Megabytes received by the clients per run."""
    megabytes_sent: Estimate | None
    """Megabytes sent in both directions per run."""
    seconds: Estimate | None
    """Wall-clock seconds of the rounds per run."""
    simulated_seconds: Estimate | None
    """Seconds on the simulated clock per run; null without `systems.devices`."""
    metrics: dict[MetricName, MetricResult]
    """Results by metric."""
    to_target: TargetResult | None = None
    """Cost of reaching the target; null without a target."""
    curves: dict[MetricName, Curve]
    """Curves by metric."""
    curves_from: int = 1
    """Round from which `curves` can differ from those at the position `since`; 1 without it."""


class ArmResults(Schema):
    """Results of arms, partial while runs are unfinished."""

    name: ExperimentName
    """Display name."""
    confidence: float = Field(examples=[0.95])
    """Confidence level of the intervals."""
    target: Target | None = None
    """Target of `to_target`; null without a target."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Settings that all arms share, by dotted path, e.g. `local.lr`; absent ones are left out, lists
    are JSON.
    """
    arms: list[ArmResult]
    """Arms in order."""
    best_arms: BestArms | None = None
    """The arms that may be the best; null for a single arm, apart from lines of reference, for more than 200
    that have ended, or if the metric has no better and worse.
    """
    selection: str | None = Field(
        default=None,
        examples=["The best value of a test measure is that of the round that is best by validation."],
    )
    """How rounds and arms were selected, if validation samples did, or a search by test samples."""

    @property
    def summary(self) -> "Frame":
        """One row per statistic: arm, metric, figure (`best`, `final`, `area`, and for the figure that arms
        are compared by the difference, with its verdict), mean, std and interval, and the settings of the
        arm.
        """
        return _frame(self, "summary")

    @property
    def curves(self) -> "Frame":
        """One row per point: arm, metric, round, megabytes sent and simulated seconds until then,
        mean and std over the seeds, and the settings of the arm.
        """
        return _frame(self, "curves")

    def to_pandas(self) -> "pd.DataFrame":
        """Convert the summary to a pandas data frame."""
        return self.summary.to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Convert the summary to a polars data frame."""
        return self.summary.to_polars()

    def __str__(self) -> str:
        """The table of the arms in their headline metric."""
        return comparison_text(self)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Name and arms alone, for `repr`: the curves would fill pages."""
        return [("name", self.name), ("arms", [arm.name for arm in self.arms])]

    def _repr_html_(self) -> str:
        return results_html(self)


def _frame(results: ArmResults, table: "Table") -> "Frame":
    return Frame(columns_of(results, table), list_lines(results, table))


class Results(ArmResults):
    """Results of an experiment, partial while `status` is not final."""

    experiment_id: ExperimentId
    """The experiment."""
    status: Status
    """Status of the experiment when the results were read."""
    position: EventPosition
    """Position of the results: `GET .../events?since=` this value continues exactly after them."""
    provenance: Provenance
    """Provenance of the experiment."""
    data_sources: list[str] = Field(default_factory=list, examples=[["CIFAR-10 (JPEG copy)"]])
    """Data as its runs have read them, e.g. `CIFAR-10 (JPEG copy)`; empty before the first rounds."""


class Member(Schema):
    """Origin of an arm of a comparison."""

    experiment_id: ExperimentId
    """The experiment."""
    experiment_name: ExperimentName
    """Name of the experiment."""
    status: Status
    """Status of the experiment when the results were read."""
    arm: int
    """Index of the arm in its experiment."""
    paired: bool
    """True if it shares seeds with the baseline, or the first arm, and equal seeds mean equal data, clients
    and draws. Other arms are not compared.
    """


class Comparison(ArmResults):
    """Comparison of arms of any experiments, whose names and indexes belong to the comparison, not
    to their experiments.
    """

    position: str = ""
    """Position of the results: `GET /v1/compare` of the same arms with `since=` this value returns of the
    curves only what can have changed.
    """
    members: list[Member]
    """Origin of each arm."""
    pairing: str = Field(examples=["All arms are compared, seed by seed."])
    """Which arms are compared."""


class Law(Schema):
    """Closed-form prediction for one arm."""

    formula: str = Field(examples=["x <- x~ + M (x - x~)"])
    """The closed form: x is the model, x~ its fixed point, eta the step size, tau_i the local
    steps, s the server's step size.
    """
    source: Source
    """Source of the closed form."""
    rate: float
    """Asymptotic factor per round by which the distance to the fixed point shrinks; no convergence
    from 1 on.
    """
    levels: dict[MetricName, float | None]
    """Value of each metric at the fixed point; null if not finite."""
    rounds: list[int]
    """Rounds of the curves."""
    curves: dict[MetricName, list[float | None]]
    """Metrics after these rounds; null if not finite."""


class ArmTheory(Schema):
    """Theory of one arm."""

    index: int
    """Position in the sweep, from 0."""
    name: ArmName
    """Name of the arm."""
    law: Law | None
    """The prediction; null if there is no closed form."""
    reason: str | None
    """Reason why there is no closed form; null if there is one."""


class Theory(Schema):
    """Closed-form predictions for an experiment."""

    experiment_id: ExperimentId
    """The experiment."""
    arms: list[ArmTheory]
    """Arms in the order of the sweep."""


class ComparisonResult(Schema):
    """One inequality behind a claim."""

    says: str = Field(examples=["FedProx ends lower than FedAvg"])
    """The comparison in words."""
    left: float | None
    """Left-hand side, mean over the seeds; null if a run has no value or diverged."""
    right: float | None
    """Right-hand side, mean over the seeds; null if a run has no value or diverged."""
    verdict: ClaimOutcome
    """Outcome of the test over the seeds, `does_not_hold` at 5 % divided by the
    number of comparisons.
    """
    seeds: int
    """Number of seeds available on both sides."""
    seeds_holding: int
    """Number of these seeds for which the comparison holds individually."""


class ClaimResult(Schema):
    """A claim and its outcome."""

    says: str = Field(examples=["the proximal term helps under stragglers"])
    """The claim."""
    source: Source
    """Place in the publication."""
    verdict: ClaimOutcome | None
    """`holds` if all comparisons do, each by a one-sided test at 5 %; `does_not_hold` if one does not;
    null while an arm has no results.
    """
    comparisons: list[ComparisonResult]
    """Comparisons that the claim is based on."""
    known_to_fail: str | None
    """Known reason if the claim did not hold when the preset was created; else null."""


class PublishedRow(Schema):
    """Row of a published table."""

    arm: ArmName
    """Name of the arm."""
    published_mean: float
    """Published mean, in the unit of the results."""
    published_std: float | None
    """Published standard deviation; null if there is none."""
    measured: Estimate | None
    """Measured value; null if there is none yet, or a run diverged."""


class PublishedTable(Schema):
    """Published numbers with the measured ones."""

    source: Source
    """Place in the publication."""
    metric: MetricName
    """Metric of the numbers."""
    statistic: str = Field(examples=["final"])
    """Statistic of each run's curve."""
    rows: list[PublishedRow]
    """Rows in published order."""


class Claims(Schema):
    """Published numbers and claims for the figure or table that an experiment follows, with the
    results.
    """

    experiment_id: ExperimentId
    """The experiment."""
    preset: PresetName
    """Preset of the experiment."""
    preset_version: int
    """Version of the preset."""
    departures: Departures
    """Differences between the preset and its source."""
    changed: bool
    """True if the preset was submitted with overrides, so the claims may not apply."""
    claims: list[ClaimResult]
    """The claims."""
    published: list[PublishedTable]
    """The numbers."""
