"""APFL: each client's model is a mixture of its own model and the global one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.ditto import SecondModel
from fedcore.core import ClientContext, Models, Vectors
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Mixture(SecondModel):
    """v descends along the gradient of F_i(alpha v + (1 - alpha) w) over v."""

    assures = Models.assures

    alpha: float = 0.5

    def mixed(self, alpha: Tensor | float, v: Tensor, w: Tensor) -> Tensor:
        """alpha v + (1 - alpha) w."""
        return alpha * v + (1 - alpha) * w

    def share(self, context: ClientContext) -> Tensor | float:
        """alpha in this round, the same for all or [..., 1, 1]."""
        return self.alpha

    plain = False

    def gradient(self, at: Callable[[Tensor], Tensor], y: Tensor, context: ClientContext) -> Tensor:
        w, v = y[..., :1, :], y[..., 1:, :]
        alpha = self.share(context)
        return alpha * at(self.mixed(alpha, v, w))

    def personal_model(self, x: Tensor, memory: Vectors) -> Tensor:
        return self.mixed(self.alpha, memory["personal"], x)


@dataclass(frozen=True)
class AdaptiveMixture(Mixture):
    """A `Mixture` with an alpha for each client, kept in the memory `alpha` [..., 1], which takes
    one projected gradient step as a round begins.
    """

    assures = Models.assures

    memory = (*Mixture.memory, "alpha")
    full_gradient = True

    def start(self, x: Tensor) -> Vectors:
        return {**super().start(x), "alpha": x.new_full((1,), self.alpha)}

    def share(self, context: ClientContext) -> Tensor:
        assert context.full_gradient is not None
        apart = context.memory["personal"] - context.x[..., 0, :]
        slope = (apart * context.full_gradient).sum(-1, keepdim=True)
        alpha: Tensor = context.memory["alpha"] - context.lr * slope
        return alpha.clamp(0, 1)[..., None]

    def remember(self, y: Tensor, context: ClientContext) -> Vectors:
        return {**super().remember(y, context), "alpha": self.share(context)[..., 0]}

    def personal_model(self, x: Tensor, memory: Vectors) -> Tensor:
        return self.mixed(memory["alpha"], memory["personal"], x)


class Apfl(AlgorithmSpec):
    """FedAvg, and beside it a model v_i of each client, trained as part of a mixture.

        w <- w - eta g_i(w) from w = x,   v_i <- v_i - eta alpha g_i(alpha v_i + (1 - alpha) w)

    Both steps use the w before the step. The personal model is alpha v_i + (1 - alpha) x; alpha = 1
    is local training, alpha = 0 the global model. v_i starts at the first model. A round computes two
    gradients in each local step. With `adaptive`, each client has its own alpha, which begins at
    `alpha` and takes one step as each of the client's rounds begins:

        alpha_i <- clip(alpha_i - eta <v_i - x, grad F_i(alpha_i v_i + (1 - alpha_i) x)>, 0, 1)

    Its gradient is over all samples of the client, the paper's over a mini-batch. Other departures:
    without `adaptive`, alpha is the same for all clients; the step size is that of `local`; the model x
    is the last iterate, not a mean of iterates. The authors' code differs from the paper and from this:
    it mixes the outputs of two networks, which is the same for linear models only, and steps v_i after
    w, at the new w; it updates alpha after the first local step, along a mixture of the two models' own
    gradients, and pulls it towards 0.
    """

    source = "Deng et al., Adaptive Personalized Federated Learning, 2020 (APFL)"
    fixed_point = "as `fedavg`"
    example = {"alpha": 0.25}
    averages_models = True
    ranges = {"alpha": FloatRange(low=0.0, high=1.0)}  # all values that the paper defines

    kind: Literal["apfl"] = "apfl"
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the client's own model in the mixture; its first value, if it is adaptive."""
    adaptive: bool = False
    """Let each client learn its own alpha."""

    def models(self) -> Models:
        return AdaptiveMixture(alpha=self.alpha) if self.adaptive else Mixture(alpha=self.alpha)
