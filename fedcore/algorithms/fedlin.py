"""FedLin: each local gradient is corrected by the global one, and step sizes fall with the local
steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec, RoundLaw
from fedcore.core import AffineForm, ClientContext, Exchange, Need, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GlobalGradient(Rule):
    """y <- y - (eta / tau_i) (g_i(y) - grad F_i(x) + g), g the gathered gradient."""

    divides_step_size = True

    def needs(self) -> frozenset[Need]:
        return frozenset({"full_gradient"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        assert context.full_gradient is not None
        assert context.mean_gradient is not None
        return grad - context.full_gradient + context.mean_gradient

    def affine_form(self) -> AffineForm:
        return AffineForm(has_offset=True)


class FedLin(AlgorithmSpec):
    """Each round the clients first exchange their gradients at x, sparsified on both links with
    error feedback.

        h_i = C_up(rho_i + grad F_i(x))
        rho_i <- rho_i + grad F_i(x) - h_i
        mean h = sum_i w_i h_i / sum_i w_i
        g = C_down(e + mean h)
        e <- e + mean h - g
        y_i <- y_i - (eta / tau_i) (g_i(y_i) - grad F_i(x) + g)    tau_i times
        x <- x + sum_i w_i (y_i - x)

    `local.lr` is eta; the models go uncompressed. Without compression x* is a fixed point whatever
    the tau_i; so it is with compression at the server alone. The paper exchanges at the end of a
    round what the next one uses; here it is exchanged at the beginning, by the clients that then
    train, which with full participation is the same. g_i may be stochastic, the gradients at x are
    full.
    """

    source = (
        "Mitra et al., Linear Convergence in Federated Learning: Tackling Client Heterogeneity and Sparse"
        " Gradients, 2021, Algorithm 1"
    )
    fixed_point = "the optimum of the uniform sum; close to it if clients compress, unless by EF21"
    weighting = "uniform"

    kind: Literal["fedlin"] = "fedlin"
    initial_gradient: Literal["exact", "zero"] = "exact"
    """The first round's g: `exact` grad f(x), exchanged uncompressed; `zero` without any
    exchange.
    """

    def rule(self) -> Rule:
        return GlobalGradient()

    def exchange(self) -> Exchange:
        return Exchange(self.initial_gradient)

    def round_law(self, prox_mu: float, *, uniform: bool) -> RoundLaw | None:
        known = self.initial_gradient == "exact" and uniform and prox_mu == 0
        return RoundLaw("gradient_correction") if known else None
