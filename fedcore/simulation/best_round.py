"""The best evaluated round of a run, whose model is kept beside the final one."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from fedcore.simulation.report import RoundReport
from fedcore.spec.evaluation import NO_BEST_MODEL
from fedcore.statistics.summary import HEADLINES, SELECTORS, better_of


@dataclass(frozen=True, slots=True)
class BestRound:
    """The best evaluated round of a run so far; of equal ones the first."""

    metric: str
    """The measure by which it is the best."""
    round: int
    """Counted from 1."""
    value: float
    """Value of the measure, finite."""

    def document(self) -> dict[str, Any]:
        """Return the round as JSON."""
        return asdict(self)


def best_round(best: BestRound | None, report: RoundReport, metric: str | None) -> BestRound | None:
    """Return the best round so far: `best`, the one before `report`, or the round of `report`.

    `metric` is `evaluation.best_model`. By default it is the headline measure: the first of SELECTORS
    and HEADLINES that the run reports. A round in which the run diverged, or whose value is not finite,
    is not the best one.
    """
    name = best.metric if best else metric or _headline(report)
    value = None if name == NO_BEST_MODEL else report.value(name)
    if value is None or report.diverged or not isfinite(value):
        return best
    found = BestRound(name, report.round, float(value))
    if best is None:
        return found
    better = better_of(name)
    assert better is not None
    # `min` and `max` return the first of equal ones.
    winner: BestRound = better(best, found, key=lambda one: one.value)
    return winner


def _headline(report: RoundReport) -> str:
    return next((name for name in (*SELECTORS, *HEADLINES) if report.value(name) is not None), NO_BEST_MODEL)
