"""Whether an experiment that repeats another came out identical."""

from enum import StrEnum

from fedq.schemas.base import Schema


class ReproductionOutcome(StrEnum):
    """What has come of a reproduction."""

    PENDING = "pending"
    """No difference so far, and not all of its runs have ended."""
    IDENTICAL = "identical"
    """Every number of every round, but for wall-clock times, is the same to the bit, and so are the final models."""
    DIFFERENT = "different"


class RunDifference(Schema):
    """Where a run differs first from the one that it repeats."""

    arm: int
    """Index of its arm."""
    arm_name: str
    """Name of its arm."""
    seed: int
    """Its seed."""
    run_id: str
    """The run of the reproduction."""
    original_run_id: str
    """The run that it repeats."""
    round: int
    """The first round that differs."""
    measure: str
    """The first measure in it that differs, of a list with the place as `x[3]`; or `rounds`, `status` or `model_sha256`, where all rounds
    that both have are the same."""
    original: float | str | None
    """What it is in the original; null where that has none."""
    here: float | str | None
    """What it is in the reproduction."""
    relative: float | None
    """The size of the difference over that of the larger of both; null where they are not two numbers."""


class MadeOtherwise(Schema):
    """What was not as it was when the original was carried out: the likely cause of a difference."""

    what: str
    """Where the provenance of runs says it, as `versions.torch`; or `specification_sha256`."""
    original: str
    """What it was, as JSON."""
    here: str
    """What it is, as JSON."""
    runs: int
    """Runs that differ so."""


class Reproduction(Schema):
    """An experiment beside the one that it repeats; final once `outcome` is not `pending`."""

    experiment_id: str
    """The repetition."""
    reproduces: str
    """The original."""
    outcome: ReproductionOutcome
    """`identical`, `different`, or `pending` while no difference has shown and runs go on."""
    runs: int
    """Runs compared: of the same arm and seed."""
    unmatched: int
    """Runs of either that the other has not, since it was extended."""
    rounds: int
    """Rounds compared, over all runs."""
    models: int
    """Runs whose final models were compared, by their digests."""
    differing: list[RunDifference]
    """Of each run that differs, where it does first; in order of arms and seeds."""
    made_otherwise: list[MadeOtherwise]
    """What was not the same when they were carried out; often it makes no difference."""
