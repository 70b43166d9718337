"""Per-FedAvg and pFedMe: the server seeks a model from which each client's own is a few steps away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.assurance import Assurance
from fedcore.block import NonNegative, PositiveRate
from fedcore.core import Adaptation, ClientContext, Models, Rule
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StepAhead(Rule):
    """The gradient after a step of size alpha, g_i(y - alpha g_i(y))."""

    assures = Rule.assures - {Assurance.ONE_GRADIENT}

    alpha: float = 0.0

    def gradients_per_step(self) -> int:
        return 2

    def gradient(self, at: Callable[[Tensor], Tensor], y: Tensor, context: ClientContext) -> Tensor:
        return at(y - self.alpha * at(y))


@dataclass(frozen=True)
class WithHessianProduct(StepAhead):
    """h - alpha d, where h is the gradient after the step and d the Hessian at y times h, as a central
    difference of gradients delta |h| away from y on either side.
    """

    assures = StepAhead.assures

    delta: float = 1e-3

    def gradients_per_step(self) -> int:
        return 4

    def gradient(self, at: Callable[[Tensor], Tensor], y: Tensor, context: ClientContext) -> Tensor:
        ahead = super().gradient(at, y, context)
        shift = self.delta * ahead
        return ahead - self.alpha * (at(y + shift) - at(y - shift)) / (2 * self.delta)


class PerFedAvg(AlgorithmSpec):
    """FedAvg on F_i(y - alpha grad F_i(y)): the server seeks a model that is good after one step of
    each client.

        h = g_i(y - alpha g_i(y))
        FO: y <- y - eta h
        HF: y <- y - eta (h - alpha d),   d = (g_i(y + delta h) - g_i(y - delta h)) / (2 delta)
        x <- x + server_lr sum_i w_i (y_i - x)

    The gradient of the objective is (I - alpha Hessian) h. The first-order variant (FO) leaves the
    Hessian out; the Hessian-free one (HF) approximates its product with h by finite differences, exactly
    on quadratics. A client's personal model is x - alpha grad F_i(x), over all its training samples; it
    is computed for evaluation and never stored. alpha = 0 is FedAvg. A local step computes two gradients,
    with HF four. Departure: all are of the same mini-batch; the paper draws one for each factor.
    """

    source = (
        "Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic"
        " Meta-Learning Approach, NeurIPS 2020, Per-FedAvg with both approximations, FO and HF"
    )
    fixed_point = "near a stationary point of the mean of F_i(y - alpha grad F_i(y))"
    example = {"alpha": 0.02}
    averages_models = True
    ranges = {"alpha": FloatRange(low=0.001, high=0.1, log=True)}  # FedQ's range

    kind: Literal["per_fedavg"] = "per_fedavg"
    alpha: NonNegative = 0.01
    """Step size of a client's adaptation."""
    hessian: Literal["none", "differences"] = "none"
    """`differences`: the Hessian-free variant (HF); `none`: the first-order one (FO)."""
    delta: PositiveRate = 1e-3
    """Distance of the finite differences, relative to |h|. Far smaller values are lost to rounding in
    float32.
    """

    def rule(self) -> Rule:
        if self.hessian == "none" or not self.alpha:
            return StepAhead(self.alpha)
        return WithHessianProduct(self.alpha, self.delta)

    def models(self) -> Models:
        return Models(adaptation=Adaptation(1, self.alpha) if self.alpha else None)


@dataclass(frozen=True)
class MoreauGradient(Rule):
    """lam (y - theta), the gradient at y of min_theta F_i(theta) + lam/2 |theta - y|^2, with theta from
    `steps` gradient steps.
    """

    assures = Rule.assures - {Assurance.ONE_GRADIENT}

    lam: float
    steps: int
    lr: float

    def gradients_per_step(self) -> int:
        return self.steps

    def gradient(self, at: Callable[[Tensor], Tensor], y: Tensor, context: ClientContext) -> Tensor:
        theta = y
        for _ in range(self.steps):
            theta = theta - self.lr * (at(theta) + self.lam * (theta - y))
        return self.lam * (y - theta)


class PFedMe(AlgorithmSpec):
    """FedAvg on the Moreau envelopes of the clients' objectives, whose gradient is lam (w - theta_i(w)).

        theta <- theta - inner_lr (g_i(theta) + lam (theta - w)), inner_steps times from theta = w
        w <- w - eta lam (w - theta),   x <- x + server_lr sum_i w_i (w_i - x)

    theta_i(w) is the client's personal model, near the minimiser of F_i(theta) + lam/2 |theta - w|^2;
    at evaluation it is computed at x from all its training samples. server_lr is the paper's beta.
    inner_lr must be below 2 / (L + lam). A local step computes `inner_steps` gradients, all of one
    mini-batch. Departures: the number of inner steps is fixed instead of an accuracy of the solution, and
    they begin at w. The authors' code begins them at the theta before, adds a weight decay of 0.001
    to them, and evaluates the theta of the last mini-batch.
    """

    source = "T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020 (pFedMe)"
    fixed_point = "a surrogate optimum of the mean of the Moreau envelopes"
    example = {"lam": 2.0, "inner_lr": 0.02}
    averages_models = True
    ranges = {
        "lam": FloatRange(low=1.0, high=100.0, log=True),
        "inner_lr": FloatRange(low=0.001, high=0.1, log=True),
    }  # FedQ's range

    kind: Literal["pfedme"] = "pfedme"
    lam: PositiveRate = 15.0
    """lambda: how strongly personal models are pulled towards the global one."""
    inner_steps: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Gradient steps K towards theta_i in each local step."""
    inner_lr: PositiveRate = 0.01
    """Step size of these."""

    def rule(self) -> Rule:
        return MoreauGradient(self.lam, self.inner_steps, self.inner_lr)

    def models(self) -> Models:
        return Models(adaptation=Adaptation(self.inner_steps, self.inner_lr, self.lam))
