"""The results of an experiment: figures over seeds, differences between arms, curves."""

from typing import Any

from fedcore.platform.status import Status
from fedcore.statistics.significance import Conclusion
from fedq.schemas.base import Schema


class Estimate(Schema):
    """A figure over the seeds of an arm."""

    n: int
    """Seeds it is taken over."""
    mean: float
    """Their mean."""
    std: float | None
    """Their sample standard deviation (n - 1); null for a single seed."""
    low: float | None
    """Lower end of the 95 % confidence interval of the mean (Student's t); null for a single seed."""
    high: float | None
    """Upper end of it."""


class Difference(Estimate):
    """An arm's figure minus that of the baseline with the same seed, over the seeds that have both, and whether it is more than chance."""

    p: float | None
    """Two-sided p-value of the paired t-test; null of fewer than 3 pairs, and where the difference is the same for every seed."""
    p_adjusted: float | None
    """The same, corrected by Holm for the number of arms that are compared with the baseline in this figure."""
    p_signed_rank: float | None
    """Two-sided p-value of Wilcoxon's signed-rank test, exact up to 50 pairs, not corrected; it asks for no normal distribution, and cannot
    fall below 0.05 with fewer than 6 pairs."""
    verdict: Conclusion
    """`better`, `worse`, or `different` where the metric has no better and worse: `p_adjusted` is below the `level`; `unclear`: it is not.
    Nothing is concluded of fewer than 3 pairs (`too_few_seeds`), where seeds make no difference (`same_for_all`), and while a run of either
    arm is not done, failed, diverged, or was stopped at a rung (`incomplete`)."""


class MetricResult(Schema):
    """One metric of one arm; a figure is null where no run has it."""

    best: Estimate | None
    """Of each run's best round: the highest accuracy, the lowest loss; null for a metric that has no better and worse."""
    final: Estimate | None
    """Of each run's last evaluated round; a run that diverged counts only where its last value was finite."""
    area: Estimate | None = None
    """Of the area under each run's curve over the rounds, normalised by their number: its mean height from the first evaluated round to the
    last, straight between them; a run that diverged has none."""
    best_difference: Difference | None
    """Of `best` to the baseline's; null for the baseline itself, and where no seed has both."""
    final_difference: Difference | None
    """Of `final` to the baseline's; null for the baseline itself, and where no seed has both."""
    area_difference: Difference | None = None
    """Of `area` to the baseline's; null for the baseline itself, and where no seed has both."""


class Curve(Schema):
    """A metric over the rounds; entry i of every list belongs to the same round."""

    rounds: list[int]
    """Rounds that at least one run evaluated; where these are more than the points asked for, the ends and the extremes."""
    megabytes: list[float]
    """Megabytes (10^6 bytes) sent in both directions until then, mean over the runs in `n`."""
    simulated_seconds: list[float | None]
    """Seconds passed on the simulated clock until then, mean over the runs in `n`; null without `systems.devices`."""
    mean: list[float]
    """Mean over the runs."""
    std: list[float | None]
    """Sample standard deviation over the runs; null for a single one."""
    n: list[int]
    """Runs that have a value there."""


class Target(Schema):
    """What runs were to reach."""

    metric: str
    """A metric that has better and worse."""
    value: float
    """The lowest value that will do, or the highest of a metric that is better the lower."""


class TargetResult(Schema):
    """What it took an arm to the target: up to the first evaluated round that was as good, over the runs that had one."""

    runs: int
    """Runs of the arm."""
    reached: int
    """Those that reached the target; the figures below are over them alone, so compare them only where this is `runs`."""
    missed: int
    """Those that ended without; the others are not done."""
    rounds: Estimate | None
    """Rounds it took."""
    megabytes: Estimate | None
    """Megabytes (10^6 bytes) sent in both directions until then."""
    simulated_seconds: Estimate | None
    """Seconds on the simulated clock until then; null without `systems.devices`."""
    seconds: Estimate | None
    """Wall-clock seconds its rounds took until then."""
    rounds_difference: Difference | None
    """Of `rounds` to the baseline's, `incomplete` unless every run of both arms reached the target."""
    megabytes_difference: Difference | None
    """Of `megabytes`, likewise."""
    simulated_seconds_difference: Difference | None
    """Of `simulated_seconds`, likewise."""


class ArmResult(Schema):
    """One arm over its seeds."""

    index: int
    """Position in the sweep's product, from 0."""
    name: str
    """What sets it apart."""
    settings: dict[str, Any]
    """The swept paths and their values here."""
    seeds: list[int]
    """The seeds whose runs have rows."""
    runs: dict[Status, int]
    """Number of runs by status; all are `succeeded` once the figures are final."""
    diverged: int
    """Runs that diverged."""
    stopped: int
    """Runs that were stopped early, at a rung of the search or by early stopping; their figures are of the rounds up to there."""
    rounds_done: int
    """Rounds committed, over all runs."""
    local_steps: Estimate | None
    """Mini-batch steps of a run so far."""
    megabytes_up: Estimate | None
    """Megabytes (10^6 bytes) a run's clients have sent."""
    megabytes_down: Estimate | None
    """Megabytes a run's clients have received."""
    megabytes_sent: Estimate | None
    """Both together."""
    seconds: Estimate | None
    """Wall-clock seconds a run's rounds have taken."""
    simulated_seconds: Estimate | None
    """Seconds they have taken on the simulated clock; null without `systems.devices`."""
    metrics: dict[str, MetricResult]
    """By metric."""
    to_target: TargetResult | None = None
    """What it took to the target; null where none was given."""
    curves: dict[str, Curve]
    """By metric."""


class ArmResults(Schema):
    """What came out of arms, as far as their runs are."""

    name: str
    """For people."""
    confidence: float
    """Of the confidence intervals."""
    level: float
    """Below it, a corrected p-value is taken to rule chance out."""
    baseline: int
    """Index of the arm that differences are to."""
    target: Target | None = None
    """What `to_target` is about; null where none was given."""
    arms: list[ArmResult]
    """In order."""


class Results(ArmResults):
    """What came out, as far as the runs are; final once `status` is."""

    experiment_id: str
    """The experiment."""
    status: Status
    """Its status when the rows were read."""
    position: str
    """Up to where it was read: `GET .../events?since=` this tells what comes after, nothing left out and nothing twice."""
    provenance: dict[str, Any]
    """What it was made from, as the experiment says it."""


class Member(Schema):
    """Where an arm of a comparison is from."""

    experiment_id: str
    """The experiment."""
    experiment_name: str
    """Its name."""
    status: Status
    """Its status when the rows were read."""
    arm: int
    """Index of the arm there."""
    paired: bool
    """Whether the same seed means the same data, clients and draws for it and the baseline, and they share seeds: its differences are then
    paired by seed. Else they are those of independent samples, by Welch's t-test."""


class Comparison(ArmResults):
    """Arms of any experiments side by side; their names and indexes are those here."""

    members: list[Member]
    """Of each arm, where it is from."""
    pairing: str
    """In words, how differences are taken."""


class Law(Schema):
    """A closed form and what it says of one arm."""

    formula: str
    """The form: x is the model, x~ where rounds come to rest, eta the step size, tau_i the local steps, s the server's step size."""
    source: str
    """Where it is from."""
    rate: float
    """Of how the distance to where rounds come to rest shrinks, by this factor a round in the long run; from 1 on they do not."""
    levels: dict[str, float | None]
    """Where each metric comes to rest; null where that is not finite."""
    rounds: list[int]
    """Some of the rounds of a run."""
    curves: dict[str, list[float | None]]
    """Each metric after these rounds; null once it is not finite."""


class ArmTheory(Schema):
    """What theory says of one arm."""

    index: int
    """Position in the sweep's product, from 0."""
    name: str
    """What sets it apart."""
    law: Law | None
    """What is known; null where no closed form is."""
    reason: str | None
    """What stands in the way of one; null where there is one."""


class Theory(Schema):
    """What closed forms say of an experiment before it is carried out."""

    experiment_id: str
    """The experiment."""
    arms: list[ArmTheory]
    """In the order of the sweep."""
