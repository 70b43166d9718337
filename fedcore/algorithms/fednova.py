"""FedNova: normalised averaging, which removes the objective inconsistency of unequal local
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec, RoundLaw
from fedcore.algorithms.scaffold import ControlVariates
from fedcore.core import Aggregator, Cohort, CohortNeed, LocalSgd, Rule

if TYPE_CHECKING:
    from torch import Tensor

TauEff = Literal["steps", "normaliser"] | float


@dataclass(frozen=True)
class NormalisedAveraging(Aggregator):
    """tau_eff sum_i w_i Delta_i / ||a_i||_1, with tau_eff a number or the cohort's weighted mean of
    tau_i or ||a_i||_1.

    A mean and not a sum: where W = sum_i w_i is not 1, it scales the step once, as it does in
    FedAvg.
    """

    assures = Aggregator.assures

    tau_eff: TauEff = "steps"

    def needs(self) -> frozenset[CohortNeed]:
        return frozenset({"normaliser"})

    def coefficients(self, cohort: Cohort) -> Tensor:
        normalised = cohort.weights / cohort.normaliser
        if self.tau_eff == "steps":
            return normalised * cohort.mean(cohort.steps)
        if self.tau_eff == "normaliser":
            return normalised * cohort.mean(cohort.normaliser)
        return normalised * self.tau_eff


class FedNova(AlgorithmSpec):
    """Averages the clients' normalised gradients d_i, so that unequal tau_i do not shift the
    optimum.

        d_i = -Delta_i / (eta ||a_i||_1),   x <- x - tau_eff sum_i w_i eta d_i

    ||a_i||_1 follows the local solver: tau_i for SGD, less with a proximal term, more with
    momentum; those come from `local.optimizer`. At a finite step size the fixed point weighs
    clients by p_i K_i / tau_i and is x* only as eta -> 0.
    """

    source = (
        "Wang et al., A Novel Framework for the Analysis and Design of Heterogeneous Federated Learning, IEEE"
        " TSP 2021, eqs. (11), (13)"
    )
    fixed_point = (
        "the optimum as the step size goes to 0, close to it for a finite step size; with"
        " `variance_reduction` the optimum, at any step size"
    )

    kind: Literal["fednova"] = "fednova"
    variance_reduction: bool = False
    """FedNova-VR: each local gradient becomes g_i + sum_j p_j d_j - d_i, d the previous round's raw
    mean gradients.
    """
    tau_eff: Literal["steps", "normaliser"] | Annotated[float, Field(gt=0, le=1e9)] = "steps"
    """Effective steps: `steps` sum_i w_i tau_i / W, `normaliser` sum_i w_i ||a_i||_1 / W, with
    W = sum_i w_i, or a number.
    """

    def rule(self) -> Rule:
        return ControlVariates(mean="share") if self.variance_reduction else LocalSgd()

    def aggregator(self) -> Aggregator:
        return NormalisedAveraging(self.tau_eff)

    def round_law(self, prox_mu: float, *, uniform: bool) -> RoundLaw | None:
        known = not self.variance_reduction and self.tau_eff == "steps"
        return RoundLaw("normalised_averaging", prox_mu) if known else None
