"""Student's t distribution in closed form. Standard library only."""

from functools import lru_cache
from math import atan, cos, exp, lgamma, log, log1p, pi, sin, sqrt, tan

CANCELS = 1e-3
"""A tail smaller than this is summed up itself: as one minus the rest it would keep too few
digits.
"""


@lru_cache(maxsize=1024)
def two_sided_quantile(confidence: float, freedom: int) -> float:
    """The t that |T| stays below with probability `confidence`, for `freedom` degrees of
    freedom.
    """
    low, high = 0.0, pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _inside(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return sqrt(freedom) * tan(low)


def two_sided_tail(t: float, freedom: int) -> float:
    """P(|T| > |t|), for `freedom` degrees of freedom, to a relative 1e-12."""
    outside = 1 - _inside(atan(abs(t) / sqrt(freedom)), freedom)
    return outside if outside > CANCELS else _tail(abs(t), freedom)


def _inside(theta: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) tan(theta)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term, total = (cos(theta) if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cos(theta) ** 2 * k / (k + 1)
    return 2 / pi * (theta + sin(theta) * total) if odd else sin(theta) * total


def _tail(t: float, freedom: int) -> float:
    """P(|T| > t) as the incomplete beta function I_x(a, 1/2), x = freedom / (freedom + t^2), a =
    freedom / 2: 26.7.1 and 26.5.4.

    Its series has positive terms only: x^a (1 - x)^(1/2) / (a B(a, 1/2)) (1 + sum_n B(a + 1, n + 1)
    / B(a + 1/2, n + 1) x^(n + 1)).
    """
    a, x, beside = freedom / 2, 1 / (1 + t * t / freedom), 1 / (1 + freedom / (t * t))  # x and 1 - x
    term, total, n = 1.0, 0.0, 0
    while term > total * 1e-17:
        total += term
        term *= x * (a + 0.5 + n) / (a + 1 + n)
        n += 1
    beta = lgamma(a) + lgamma(0.5) - lgamma(a + 0.5)
    return exp(-a * log1p(t * t / freedom) + log(beside) / 2 - log(a) - beta) * total
