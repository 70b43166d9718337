"""Rules whose direction is the gradient, plus a pull towards x, plus something that stays the same
over a round.

With g the gradient of the data's part of the loss, local training under such a rule is

    v <- momentum v + g + shrink y + pull (y - x) + offset;   y <- y - size v
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import isclose
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fedcore.core import Algorithm, ClientContext, ClientRule

if TYPE_CHECKING:
    from torch import Tensor


class Factors(NamedTuple):
    """The numbers of the recursion that stay the same over a round."""

    pull: float
    shrink: float
    momentum: float


def factors(algorithm: Algorithm, l2: float) -> Factors:
    """Those of `algorithm`, whose rule must be of the form, for a client whose loss has l2/2 |y|^2
    in it beside the data's part.
    """
    solver, towards, shrink = algorithm.solver, proximal_coefficient(algorithm.rule), l2
    assert towards is not None
    if algorithm.rule.subtracts_gradient_at_x():
        # With the gradient at x the share that l2 has in it is taken away.
        towards, shrink = towards + l2, 0.0
    return Factors(towards + solver.prox_mu, shrink + solver.weight_decay, solver.momentum)


def offsets(rule: ClientRule, local: ClientContext) -> Tensor:
    """[M, D] what the rule adds to the gradients of the clients that `local` is of.

    There must be one at least.
    """
    start = local.x.expand(len(local.steps), -1)
    return rule.direction(start.new_zeros(start.shape), start, local)


@lru_cache(maxsize=64)
def proximal_coefficient(rule: ClientRule) -> float | None:
    """mu, where direction(g, y) = g + mu (y - x) + constant; None where it is anything else.

    No declaration: the rule is asked on single numbers, whatever it remembers.
    """
    mu = _direction(rule, 0.0, 1.0, 0.0) - _direction(rule, 0.0, 0.0, 0.0)
    for grad, y, other in product((0.0, 1.0, -3.0), (0.0, 1.0, -2.0), (0.0, 0.5)):
        if not isclose(
            _direction(rule, grad, y, other),
            grad + mu * y + _direction(rule, 0.0, 0.0, other),
            rel_tol=1e-12,
            abs_tol=1e-12,
        ):
            return None
    return mu


@lru_cache(maxsize=64)
def has_offset(rule: ClientRule) -> bool:
    """Return True if such a rule adds anything of its own to gradient and pull.

    If not, its offsets are zero whatever it remembers.
    """
    return any(_direction(rule, 0.0, x, other, x) != 0 for x, other in ((0.0, 0.5), (0.75, 0.0), (0.75, 0.5)))


def _direction(rule: ClientRule, grad: float, y: float, other: float, x: float = 0.0) -> float:
    """At x, where everything else that the rule may look at is a multiple of `other`, each
    its own.
    """
    names = sorted({*rule.memory(), *rule.shared(), *rule.start(cast("Any", x))})
    shared, memory = (
        {name: start + other * k for k, name in enumerate(names, 2)} for start in (other / 2, other / 3)
    )
    full_gradient, mean_gradient = 5 * other / 4, 7 * other / 4
    known: Any = {
        "x": x,
        "shared": shared,
        "memory": memory,
        "full_gradient": full_gradient,
        "mean_gradient": mean_gradient,
    }
    known |= {"steps": 1.0, "normaliser": 1.0}
    return float(rule.direction(cast("Any", grad), cast("Any", y), ClientContext(**known, lr=1.0)))
