"""Local work in a round: inexactness of the clients' solutions, and client drift."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

from fedcore.core import regularised
from fedcore.lazy import np
from fedcore.measures.base import Evaluated, Measured, MeasureInfo, MeasureSpec

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.engine.assignment import Observation
    from fedcore.problems import TrainingProblem


def _gamma(problem: TrainingProblem, observation: Observation, row: int, delta: Tensor) -> float:
    client, local = int(observation.work.clients[row]), observation.work.local.take(row)
    x = local.x
    rule, solver = observation.algorithm.rule, observation.algorithm.solver

    def slope(y: Tensor) -> float:
        """|grad h_i(y; x)|."""
        grad = problem.gradient(y, client, None)
        if "gradient_at_x" in rule.needs():
            grad = grad - problem.gradient(x, client, None)
        direction = regularised(solver, lambda grad: rule.direction(grad, y, local), grad, y, x)
        return float(direction.double().norm())

    end, start = slope(x + delta), slope(x)
    return end / start if start else (inf if end else 0.0)


class Drift(MeasureSpec):
    """Mean squared distance of the clients from the server's model."""

    of = "round"
    needs_deltas = True
    infos = (MeasureInfo("client_drift", "mean of |y_i - x|^2 (SCAFFOLD)", least=0.0),)

    kind: Literal["drift"] = "drift"

    def compute(self, evaluated: Evaluated) -> Measured:
        """(1/M) sum_i |y_i - x|^2: Karimireddy et al., SCAFFOLD, Section 5, at the last local step."""
        assert evaluated.round is not None
        assert evaluated.round.deltas is not None
        return {"client_drift": float(evaluated.round.deltas.double().square().sum(1).mean())}


class Inexactness(MeasureSpec):
    """Inexactness of the clients' solutions."""

    of = "round"
    needs_deltas = True
    infos = (
        MeasureInfo(
            "gamma_inexactness",
            "largest |grad h_i(y_i)| / |grad h_i(x)| of the local subproblems (FedProx); costs two full"
            " gradients per client",
            "a client started at its optimum and left it",
            least=0.0,
        ),
        MeasureInfo(
            "mean_gamma_inexactness",
            "mean of the same",
            "a client started at its optimum and left it",
            least=0.0,
        ),
    )

    kind: Literal["inexactness"] = "inexactness"

    def compute(self, evaluated: Evaluated) -> Measured:
        """The largest and the mean gamma_i of the M clients of a round (FedProx, Definition 2), by full
        gradients of F_i.

            gamma_i = |grad h_i(y_i; x)| / |grad h_i(x; x)|,   h_i(y; x) = F_i(y) + mu/2 |y - x|^2
            gamma_inexactness        max_i gamma_i, which the convergence theorem takes
            mean_gamma_inexactness   (1/M) sum_i gamma_i

        It may exceed 1: the client diverges. Of 0/0 it is 0, over 0 inf. For other algorithms grad h_i
        is what their local optimiser descends along: the gradient with weight decay (except that of
        `adamw`), the proximal term and the rule's own correction, before clipping.
        """
        problem, observation = evaluated.problem, evaluated.round
        assert observation is not None
        assert observation.deltas is not None
        gammas = np.array(
            [_gamma(problem, observation, row, delta) for row, delta in enumerate(observation.deltas)]
        )
        return {"gamma_inexactness": float(gammas.max()), "mean_gamma_inexactness": float(gammas.mean())}
