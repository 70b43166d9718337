"""Published numbers and claims, compared with the results of an experiment."""

from fedq.schemas.base import Schema
from fedq.schemas.results import Estimate


class ComparisonResult(Schema):
    """One inequality behind a claim."""

    says: str
    """The comparison in words."""
    left: float | None
    """Left-hand side, mean over the seeds; null if a run has no value or diverged."""
    right: float | None
    """Right-hand side, mean over the seeds; null if a run has no value or diverged."""
    holds: bool
    """True if the comparison holds for the means over the seeds."""
    seeds: int
    """Number of seeds available on both sides."""
    seeds_holding: int
    """Number of these seeds for which the comparison holds individually."""


class ClaimResult(Schema):
    """A claim and its outcome."""

    says: str
    """The claim."""
    source: str
    """Place in the publication."""
    holds: bool | None
    """True if all comparisons hold; null while an arm has no results."""
    comparisons: list[ComparisonResult]
    """Comparisons that the claim is based on."""
    known_to_fail: str | None
    """Known reason if the claim did not hold when the preset was created; else null."""


class PublishedRow(Schema):
    """Row of a published table."""

    arm: str
    """Name of the arm."""
    published_mean: float
    """Published mean, in the unit of the results."""
    published_std: float | None
    """Published standard deviation; null if there is none."""
    measured: Estimate | None
    """Measured value; null if there is none yet, or a run diverged."""


class PublishedTable(Schema):
    """Published numbers with the measured ones."""

    source: str
    """Place in the publication."""
    metric: str
    """Metric of the numbers."""
    statistic: str
    """Statistic of each run's curve."""
    rows: list[PublishedRow]
    """Rows in published order."""


class Claims(Schema):
    """Published numbers and claims for the figure or table that an experiment follows, with the
    results.
    """

    experiment_id: str
    """The experiment."""
    preset: str
    """Preset of the experiment."""
    preset_version: int
    """Version of the preset."""
    departures: list[str]
    """Differences between the preset and its source."""
    changed: bool
    """True if the preset was submitted with overrides, so the claims may not apply."""
    claims: list[ClaimResult]
    """The claims."""
    published: list[PublishedTable]
    """The numbers."""
