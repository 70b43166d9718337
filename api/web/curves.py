"""What pages with curves are told: the metrics there are to choose from, and which way is better."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, TypedDict

from api.results.summaries import METRICS
from fedcore.statistics.summary import BETTER, HEADLINES

EXACT = ("suboptimality", "objective", "distance")
"""What every row of a problem with a known minimiser has."""
UNTESTED = frozenset({"test_loss", "test_accuracy"})
"""What such a problem has not."""


class Told(TypedDict):
    """The context of `_curves.html`, beside addresses."""

    metrics: list[str]
    better: Mapping[str, str]
    arms: int


def told(specifications: Collection[Mapping[str, Any]], arms: int) -> Told:
    """Of so many arms of experiments with these specifications; metrics that most of them have come first, then the most telling."""
    counts = Counter(metric for specification in specifications for metric in measured(specification))
    metrics = sorted(counts, key=lambda metric: (-counts[metric], HEADLINES.index(metric) if metric in HEADLINES else len(HEADLINES)))
    return {"metrics": metrics, "better": {metric: better.__name__ for metric, better in BETTER.items()}, "arms": arms}


def measured(specification: Mapping[str, Any]) -> list[str]:
    """The metrics that an experiment asks for."""
    measures = [metric for metric in specification["evaluation"]["measures"] if metric in METRICS]
    if specification["problem"]["dataset"]["kind"] in ("quadratic", "least_squares"):
        return [*EXACT, *(metric for metric in measures if metric not in UNTESTED)]
    return measures
