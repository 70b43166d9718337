"""Comparison of a reproduction with its original."""

from enum import StrEnum

from fedq.schemas.base import Schema


class ReproductionOutcome(StrEnum):
    """Outcome of a reproduction."""

    PENDING = "pending"
    """No difference so far, and some runs are unfinished."""
    IDENTICAL = "identical"
    """All numbers of all rounds, except wall-clock times, and the final models are
    bit-identical.
    """
    DIFFERENT = "different"


class RunDifference(Schema):
    """First difference between a run and its original."""

    arm: int
    """Index of its arm."""
    arm_name: str
    """Name of its arm."""
    seed: int
    """Seed of the run."""
    run_id: str
    """The run of the reproduction."""
    original_run_id: str
    """The original run."""
    round: int
    """First round that differs."""
    measure: str
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

    what: str
    """Path in the provenance of runs, e.g. `versions.torch`, or `specification_sha256`."""
    original: str
    """Original value, as JSON."""
    here: str
    """Value in the reproduction, as JSON."""
    runs: int
    """Number of runs with this difference."""


class Reproduction(Schema):
    """A reproduction compared with its original; final once `outcome` is not `pending`."""

    experiment_id: str
    """The reproduction."""
    reproduces: str
    """The original experiment."""
    outcome: ReproductionOutcome
    """`identical`, `different`, or `pending` while there is no difference and runs are
    unfinished.
    """
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
