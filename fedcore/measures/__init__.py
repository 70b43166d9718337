"""Measures of a model and of a round; a new one needs its module and a place in GROUPS.

A measure has one name, in the specification, in the rows and in figures. A measure that does not
apply to the problem, or has no client to be taken on, is left out of the row; an undefined value is
infinite or NaN, and stored as null.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from fedcore.measures.base import Measured, MeasureGroup, MeasureInfo
from fedcore.measures.contribution import CONTRIBUTION, MIN_NORM, surrogate_weights
from fedcore.measures.dissimilarity import DISSIMILARITY
from fedcore.measures.fairness import FAIRNESS
from fedcore.measures.local_work import DRIFT, INEXACTNESS

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.engine.assignment import Observation
    from fedcore.measures.contribution import Floats
    from fedcore.problems import TrainingProblem

LOSSES = MeasureGroup(
    (
        MeasureInfo(
            "train_loss", "f, the p-weighted mean of all clients' training losses", "the run diverged", "min"
        ),
        MeasureInfo("test_loss", "mean loss over the test samples", better="min", needs="tests"),
        MeasureInfo(
            "test_accuracy", "share of the test samples classified right", better="max", needs="classes"
        ),
    ),
    of="model",
)
GROUPS: tuple[MeasureGroup, ...] = (
    LOSSES,
    DISSIMILARITY,
    FAIRNESS,
    CONTRIBUTION,
    DRIFT,
    INEXACTNESS,
    MIN_NORM,
)
MEASURES: Mapping[str, MeasureInfo] = {
    measure.name: measure for group in GROUPS for measure in group.measures
}
"""All measures by name."""


def of_population(name: str) -> bool:
    """True if the measure `name` is taken client by client over the whole population."""
    return any(group.is_asked([name]) for group in GROUPS if group.of == "population")


def needs_deltas(names: Collection[str]) -> bool:
    """True if any of these measures of a round needs the delta of each client."""
    return any(group.needs_deltas and group.is_asked(names) for group in GROUPS)


def population_measures(
    problem: TrainingProblem,
    x: Tensor,
    observed: Observation | None,
    names: Collection[str],
    scales: Floats | float = 1.0,
) -> Measured:
    """The measures `names` of `problem` over all clients, at x [D].

    `observed` is the round that led there, on a problem whose gradients are `scales` [N] times
    those of `problem`.
    """
    if not any(map(of_population, names)):
        return {}  # else the weights would be read from the device
    surrogate = None if observed is None else surrogate_weights(observed, len(problem.share)) * scales
    return _measured("population", names, problem, x, surrogate)


def round_measures(problem: TrainingProblem, observed: Observation, names: Collection[str]) -> Measured:
    """The measures `names` of the clients of one round."""
    return _measured("round", names, problem, observed)


def _measured(of: str, names: Collection[str], *given: object) -> Measured:
    measured: Measured = {}
    for group in GROUPS:
        if group.of == of and group.compute is not None and group.is_asked(names):
            measured |= group.compute(*given)
    return {name: value for name, value in measured.items() if name in names}
