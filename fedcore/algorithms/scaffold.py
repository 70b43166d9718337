"""SCAFFOLD: control variates against client drift; their rule is also that of FedAvg-VR and FedNova-VR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.assurance import Assurance
from fedcore.core import AffineForm, Aggregate, ClientContext, Cohort, Need, Remembers, Rule, Vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ControlVariates(Rule):
    """y <- y - eta (g_i(y) - c_i + c), where c_i estimates client i's gradient and c the
    population's.

    After a round c_i is either the client's full gradient at x (`estimate: anchor`) or the mean of
    the raw gradients of its steps (`estimate: steps`), weighted by a_i as the solver weighs them:

        c_i <- c_i - c + (x - y) / (eta ||a_i||_1)

    which for plain SGD is SCAFFOLD's option II, since then ||a_i||_1 = tau_i. The server keeps
    c = sum_i s_i c_i with s_i = 1/N (`mean: uniform`) or s_i = p_i (`mean: share`).
    """

    assures = Rule.assures - {Assurance.CHANGE_ALONE}
    memory: ClassVar[tuple[str, ...]] = ("control",)
    shared = sent = ("control",)
    remembers: ClassVar[Remembers] = "trained"

    estimate: Literal["anchor", "steps"] = "steps"
    mean: Literal["uniform", "share"] = "uniform"

    def needs(self) -> frozenset[Need]:
        return frozenset({"full_gradient" if self.estimate == "anchor" else "normaliser"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad - context.memory["control"] + context.shared["control"]

    def affine_form(self) -> AffineForm:
        return AffineForm(has_offset=True)

    def sends(self, delta: Tensor, context: ClientContext) -> Vectors:
        if context.full_gradient is not None:
            return {"control": context.full_gradient - context.memory["control"]}
        return {"control": -context.shared["control"] - delta / (context.lr * context.normaliser)}

    def remember(self, delta: Tensor, sent: Vectors, x: Tensor, context: ClientContext) -> Vectors:
        return {"control": context.memory["control"] + sent["control"]}

    def move_shared(self, shared: Vectors, sent: Vectors, cohort: Cohort, aggregate: Aggregate) -> Vectors:
        changes = sent["control"]
        change = cohort.share @ changes if self.mean == "share" else changes.sum(0) / cohort.population
        return {"control": shared["control"] + change}


class Scaffold(AlgorithmSpec):
    """Each local step is corrected by the difference of the population's and the client's control
    variate.

        y <- y - eta (g_i(y) - c_i + c)
        option 1: c_i <- grad F_i(x)       option 2: c_i <- c_i - c + (x - y) / (tau_i eta)
        x <- x + server_lr mean_S(y_i - x),   c <- c + (1/N) sum_S (change of c_i)

    c and c_i start at zero; clients outside the cohort keep theirs, so c is always the mean of all
    c_i. With local momentum, tau_i becomes ||a_i||_1. The cohort is averaged uniformly unless
    `participation.weighting` says otherwise.
    """

    source = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,"
        " Algorithm 1"
    )
    fixed_point = "the optimum of the uniform sum"
    weighting = "uniform"

    kind: Literal["scaffold"] = "scaffold"
    option: Literal[1, 2] = 2
    """1: an extra full gradient at x; 2: reuse the gradients of the local steps."""

    def rule(self) -> Rule:
        return ControlVariates(estimate="anchor" if self.option == 1 else "steps")
