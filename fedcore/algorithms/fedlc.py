"""Losses that know how many samples of each class a client holds: FedLC and FedRS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.block import NonNegative
from fedcore.core import Objective, Outputs, Reading, View
from fedcore.lazy import torch
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor

ABSENT = 1e-8
"""Samples in place of 0 of a class that a client lacks, in published implementations of FedLC."""


@dataclass(frozen=True)
class CalibratedScores(Objective):
    """The loss at s_c - tau n_c^(-1/4)."""

    assures = Objective.assures
    reads: ClassVar[tuple[Reading, ...]] = ("class_counts",)
    logits = True

    tau: float = 1.0

    def loss(self, outputs: Outputs, labels: Tensor, view: View) -> Tensor:
        margins = self.tau * view.class_counts.clamp(min=ABSENT) ** -0.25
        return view.loss(outputs.scores - margins, labels)


@dataclass(frozen=True)
class RestrictedScores(Objective):
    """The loss at alpha s_c for the classes c that the client lacks, and at s_c for the others."""

    assures = Objective.assures
    reads: ClassVar[tuple[Reading, ...]] = ("class_counts",)
    logits = True

    alpha: float = 0.5

    def loss(self, outputs: Outputs, labels: Tensor, view: View) -> Tensor:
        return view.loss(torch.where(view.class_counts > 0, 1.0, self.alpha) * outputs.scores, labels)


class FedLc(AlgorithmSpec):
    """FedAvg whose clients lower the scores of classes in their loss, the more the fewer samples they have.

        loss of the scores s_c - tau n_c^(-1/4)

    with n_c the client's training samples of class c; a class that it lacks counts as 1e-8 samples, as in
    published implementations, which lowers its score by 100 tau. tau = 0 is FedAvg, and nothing but models is
    sent. Departure: the paper leaves the true class out of the denominator of the softmax; with it there, as
    in published implementations, tau = 0 is cross-entropy.
    """

    source = (
        "Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022"
        " (FedLC), Section 4"
    )
    fixed_point = "none: quadratics have no network"
    averages_models = True
    example = {"tau": 1.0}
    ranges = {"tau": FloatRange(low=0.1, high=10.0, log=True)}  # FedQ's range

    kind: Literal["fedlc"] = "fedlc"
    tau: NonNegative = 1.0
    """Size of the margins."""

    def objective(self) -> Objective:
        return CalibratedScores(self.tau)


class FedRs(AlgorithmSpec):
    """FedAvg whose clients scale down the scores of the classes that they lack, so that these are not
    pushed away.

        loss of the scores psi_c s_c,   psi_c = 1 if the client has samples of class c, else alpha

    alpha = 1 is FedAvg, and nothing but models is sent. The paper's last layer has no bias; here psi scales
    the whole score. The authors' code gives each class (1 - alpha) n_c / max n + alpha instead.
    """

    source = (
        "Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data,"
        " KDD 2021, restricted softmax"
    )
    fixed_point = "none: quadratics have no network"
    averages_models = True
    example = {"alpha": 0.5}
    ranges = {"alpha": FloatRange(low=0.0, high=1.0)}  # all values that the paper defines

    kind: Literal["fedrs"] = "fedrs"
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Factor of the scores of classes that a client lacks."""

    def objective(self) -> Objective:
        return RestrictedScores(self.alpha)
