"""Short texts about runs and rounds for progress bars."""

from fedcore.statistics.summary import headline
from fedq.schemas import RoundEvent, Run


def name_of(run: Run) -> str:
    """Name of a run within its experiment."""
    return f"{run.arm_name}, seed {run.seed}"


def note_of(row: RoundEvent) -> str:
    """Headline metric of a round with its value."""
    measured = {
        name: value
        for name, value in {**row.extra, **row.model_dump(exclude={"extra"})}.items()
        if value is not None
    }
    metric = headline(measured)
    return f"{metric.replace('_', ' ')} {measured[metric]:.4g}" if metric in measured else ""
