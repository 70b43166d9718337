"""What a publication printed and claimed of a preset, beside what came out."""

from fedq.schemas.base import Schema
from fedq.schemas.results import Estimate


class ComparisonResult(Schema):
    """One inequality behind a claim."""

    says: str
    """It in words."""
    left: float | None
    """What came out for its arm, mean over the seeds; null where some run has none, or diverged."""
    right: float | None
    """What it is compared with, likewise."""
    holds: bool
    """Whether it holds in the mean over the seeds."""
    seeds: int
    """Seeds that both sides have."""
    seeds_holding: int
    """Those of them in which it holds by itself."""


class ClaimResult(Schema):
    """One claim and whether it holds."""

    says: str
    """The claim."""
    source: str
    """Where it is made."""
    holds: bool | None
    """Whether all of its comparisons hold; null while an arm of it has no results."""
    comparisons: list[ComparisonResult]
    """What it rests on."""
    known_to_fail: str | None
    """Where it did not come out when the preset was made, why, as far as that was found out; else null."""


class PublishedRow(Schema):
    """One arm of a published table."""

    arm: str
    """Its name."""
    published_mean: float
    """As printed, in the unit in which results are given."""
    published_std: float | None
    """The deviation printed with it; null where there is none."""
    measured: Estimate | None
    """What came out; null where there is nothing yet, or a run diverged."""


class PublishedTable(Schema):
    """Published numbers beside what came out."""

    source: str
    """Where they are printed."""
    metric: str
    """Of what."""
    statistic: str
    """What was read off each run's curve."""
    rows: list[PublishedRow]
    """By arm, as published."""


class Claims(Schema):
    """What was printed and claimed of the figure or table that an experiment follows, beside what came out."""

    experiment_id: str
    """The experiment."""
    preset: str
    """What it was submitted as."""
    preset_version: int
    """The version of it."""
    departures: list[str]
    """Where the preset differs from its source."""
    changed: bool
    """Whether it was submitted with changes of its own, so that the claims may not be about it."""
    claims: list[ClaimResult]
    """The claims."""
    published: list[PublishedTable]
    """The numbers."""
