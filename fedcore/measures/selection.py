"""Computes the measures that a specification names."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcore.engine.observation import Observation
from fedcore.measures import Measured
from fedcore.measures.contribution import contribution, min_norm_contribution, surrogate_weights
from fedcore.measures.dissimilarity import dissimilarity
from fedcore.measures.fairness import fairness
from fedcore.measures.local_work import drift, inexactness
from fedcore.problems import TrainingProblem
from fedcore.problems.transformed import Transformed

_GRADIENTS = frozenset(
    {"gradient_diversity", "surrogate_diversity", "b_dissimilarity", "gradient_variance", "gradient_norm"}
)
_ACCURACIES = frozenset({"client_accuracy_std", "client_accuracy_worst_decile"})
_CONTRIBUTION = frozenset({"weight_bias", "tau_eff", "slowdown"})
_HULL = frozenset({"min_norm_weights", "fedaware_chi_square"})
_DRIFT = frozenset({"client_drift"})
_INEXACTNESS = frozenset({"gamma_inexactness", "mean_gamma_inexactness"})


def looks_at_deltas(names: Collection[str]) -> bool:
    """True if any of these measures of a round needs the delta of each client."""
    return not (_DRIFT | _INEXACTNESS).isdisjoint(names)


def population_measures(
    problem: TrainingProblem,
    trained: TrainingProblem,
    x: Tensor,
    observed: Observation | None,
    names: Collection[str],
) -> Measured:
    """The measures `names` of `problem` over all clients, at x [D].

    `observed` is the round on `trained` that led there.
    """
    measured: Measured = {}
    if not _GRADIENTS.isdisjoint(names):
        surrogate = (
            None if observed is None else surrogate_weights(observed, len(problem.share)) * _scales(trained)
        )
        measured |= dissimilarity(problem, x, surrogate)
    if not _ACCURACIES.isdisjoint(names):
        measured |= fairness(problem, x)
    return _chosen(measured, names)


def round_measures(problem: TrainingProblem, observed: Observation, names: Collection[str]) -> Measured:
    """The measures `names` of the clients of one round."""
    measured: Measured = {}
    if not _CONTRIBUTION.isdisjoint(names):
        measured |= contribution(observed)
    if not _HULL.isdisjoint(names):
        measured |= min_norm_contribution(observed, problem.share)
    if not _DRIFT.isdisjoint(names):
        measured |= drift(observed)
    if not _INEXACTNESS.isdisjoint(names):
        measured |= inexactness(problem, observed)
    return _chosen(measured, names)


def _scales(trained: TrainingProblem) -> NDArray[np.float64] | float:
    """Factors of the gradients of `trained` over those of the measured problem: [N] p_i N if it is
    transformed, else 1.
    """
    return trained.factors if isinstance(trained, Transformed) else 1.0


def _chosen(measured: Measured, names: Collection[str]) -> Measured:
    return {name: value for name, value in measured.items() if name in names}
