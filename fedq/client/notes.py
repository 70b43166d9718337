"""Runs and their rounds in a few words, beside bars of progress."""

from fedcore.statistics.summary import headline
from fedq.schemas import RoundEvent, Run


def name_of(run: Run) -> str:
    """What tells a run from the others of its experiment."""
    return f"{run.arm_name}, seed {run.seed}"


def note_of(row: RoundEvent) -> str:
    """The most telling figure of a round, in words."""
    measured = {
        name: value
        for name, value in {**row.extra, **row.model_dump(exclude={"extra"})}.items()
        if value is not None
    }
    metric = headline(measured)
    return f"{metric.replace('_', ' ')} {measured[metric]:.4g}" if metric in measured else ""
