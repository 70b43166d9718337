"""FedSVRG: stochastic variance-reduced gradients at the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import AffineForm, ClientContext, Exchange, Need, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class VarianceReduced(Rule):
    """y <- y - (h / tau_i) (g_i(y) - g_i(x) + g), both g_i over the step's mini-batch and g the
    gathered gradient.
    """

    divides_step_size = True

    def needs(self) -> frozenset[Need]:
        return frozenset({"full_gradient", "gradient_at_x"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        assert context.mean_gradient is not None
        return grad + context.mean_gradient

    def affine_form(self) -> AffineForm:
        return AffineForm(has_offset=True)


class FedSvrg(AlgorithmSpec):
    """Each round gathers the gradient at x.

    Every local step then takes the change of its mini-batch's gradient since x.

        g = sum_i w_i grad F_i(x) / sum_i w_i
        y_i <- y_i - (h / tau_i) (g_i(y_i) - g_i(x) + g)    tau_i times
        x <- x + sum_i w_i (y_i - x)

    `local.lr` is h; the paper's step size h / n_i is this one, since each of its clients takes n_i
    steps. Departure: the paper's scalings S_i and A by how many clients hold a feature are the
    identity, as they are for dense data. With full batches this is FedLin without compression and
    with weights p_i. Compression acts on the gradients, as in FedLin.
    """

    source = (
        "Konecny et al., Federated Optimization: Distributed Machine Learning for On-Device Intelligence,"
        " 2016, Algorithm 4 (FSVRG)"
    )
    fixed_point = "the optimum, also with mini-batches; close to it if clients compress, unless by EF21"

    kind: Literal["fedsvrg"] = "fedsvrg"

    def rule(self) -> Rule:
        return VarianceReduced()

    def exchange(self) -> Exchange:
        return Exchange()
