"""Rules whose direction is the gradient, plus a pull towards x, plus something that stays the same over a round."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import isclose
from typing import Any, cast

from fedcore.core import Local, Rule


@lru_cache(maxsize=64)
def pull(rule: Rule) -> float | None:
    """mu, where direction(g, y) = g + mu (y - x) + constant; None where it is anything else.

    No declaration: the rule is asked on single numbers, whatever it remembers.
    """
    mu = _direction(rule, 0.0, 1.0, 0.0) - _direction(rule, 0.0, 0.0, 0.0)
    for grad, y, other in product((0.0, 1.0, -3.0), (0.0, 1.0, -2.0), (0.0, 0.5)):
        if not isclose(_direction(rule, grad, y, other), grad + mu * y + _direction(rule, 0.0, 0.0, other), rel_tol=1e-12, abs_tol=1e-12):
            return None
    return mu


def _direction(rule: Rule, grad: float, y: float, other: float) -> float:
    """At x = 0, where everything else that the rule may look at is `other`."""
    zero, one, rest = cast("Any", 0.0), cast("Any", 1.0), cast("Any", other)
    vectors = cast("Any", dict.fromkeys({*rule.memory(), *rule.shared(), *rule.start(zero)}, other))
    local = Local(x=zero, shared=vectors, memory=vectors, anchor=rest, gathered=rest, steps=one, effort=one, lr=1.0)
    return float(rule.direction(cast("Any", grad), cast("Any", y), local))
