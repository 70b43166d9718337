"""The min-norm point of a convex hull: the shortest sum_i lambda_i g_i, lambda in the simplex and
near a given point of it.

Accelerated projected gradients find which lambda_i are at a bound; an active-set method then ends
at a point that satisfies the optimality conditions to rounding. Its number of steps depends on the
data, as nothing else in a round does. SciPy's `nnls` finds the point in the whole simplex, but
neither it nor `lsq_linear`, which has bounds and no sum, in a box.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 16
TOLERANCE = 1e-13
"""Tolerance of the optimality conditions, relative to the largest |g_i|^2: no slope by which weight
could move is larger.

The squared length of the result has this accuracy, too; with two vectors, each lambda has this
accuracy over the squared relative distance of the vectors.
"""
BEYOND = 1e30
"""Factor of a slope that takes any slope above TOLERANCE past every bound."""


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products [M, V] of the rows of `left` [M, D] with the rows of `right` [V, D], in
    float64, without a whole copy of either in that type.
    """
    products = left.new_zeros((len(left), len(right))).double()
    for start in range(0, left.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        products = products + left[:, part].double() @ right[:, part].double().T
    return products


def unit_lengths(gram: Tensor) -> Tensor:
    """1/|g_i| [V] for inner products [V, V]; zero where g_i is."""
    lengths = gram.diagonal().sqrt()
    return lengths.reciprocal().masked_fill(lengths == 0, 0.0)


def min_norm(gram: Tensor, centre: Tensor, epsilon: float = 1.0) -> Tensor:
    """lambda [V] that minimises |sum_i lambda_i g_i|^2 over sum lambda = 1, lambda >= 0,
    |lambda - centre|_inf <= epsilon.

    `gram` [V, V] holds the inner products of the g_i, `centre` [V] sums to 1 and is not negative.
    Where several lambda give the same shortest vector, it is the one that the descent from `centre`
    reaches. NaN where the inner products are not finite.
    """
    gram, centre = gram.double().cpu(), centre.double().cpu()
    if not bool(gram.isfinite().all()):
        return centre * float("nan")
    gram = gram / gram.diagonal().max().clamp(min=1e-300)
    low, high = (centre - epsilon).clamp(min=0.0), (centre + epsilon).clamp(max=1.0)
    return _finish(gram, low, high, _approach(gram, low, high, centre))


def _approach(gram: Tensor, low: Tensor, high: Tensor, point: Tensor) -> Tensor:
    """Nesterov's accelerated projected gradients, from `point` [V]."""
    rate = gram.abs().sum(1).max().clamp(min=1e-300).reciprocal()
    ahead, momentum = point, 1.0
    for _ in range(20 + 2 * len(point)):
        following = _project(ahead - rate * (gram @ ahead), low, high)
        grown = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = following + (momentum - 1) / grown * (following - point)
        point, momentum = following, grown
    return point


def _project(point: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The nearest point of the boxed simplex: clip(point - theta), with theta such that the sum is
    1.

    The sum falls in theta, piecewise linearly: an entry begins to fall at point - high and stops at
    point - low.
    """
    count = len(point)
    corners = point.new_zeros(2 * count)
    corners[:count], corners[count:] = point - high, point - low
    corners, order = corners.sort()
    slopes = (1.0 - 2.0 * (order >= count).double()).cumsum(0)
    drops = (slopes[:-1] * corners.diff()).cumsum(0)
    excess = float(high.sum()) - 1.0
    last = int((drops < excess).sum())
    reached = float(drops[last - 1]) if last else 0.0
    theta = corners[last] + (excess - reached) / slopes[last].clamp(min=1.0)
    return (point - theta).clamp(min=low, max=high)


def _finish(gram: Tensor, low: Tensor, high: Tensor, point: Tensor) -> Tensor:
    """A primal active-set method: to the minimum over the free entries or the first bound on the
    way; then free the worst held entry.
    """
    free = (point > low) & (point < high)
    for _ in range(100 + 10 * len(point)):
        slope = (gram @ point)[free]
        if len(slope) and slope.max() - slope.min() > TOLERANCE / 2:
            move = point.new_zeros(point.shape)
            move[free] = _descent(gram[free][:, free], slope)
            room = (((high - point) * (move > 0) + (low - point) * (move < 0)) / move).nan_to_num(
                nan=float("inf")
            )
            blocking = int(room.argmin())
            point = (point + min(1.0, float(room[blocking])) * move).clamp(min=low, max=high)
            if room[blocking] < 1:
                # Exactly there: which bound holds an entry is read off its value.
                point[blocking] = (high if move[blocking] > 0 else low)[blocking]
                free[blocking] = False
            continue
        gain = _gains(gram @ point, point, low, high, free)
        worst = int(gain.argmax())
        if gain[worst] <= TOLERANCE / 2:
            break
        free[worst] = True
    return point


def _descent(face: Tensor, slope: Tensor) -> Tensor:
    """The step [F], of sum 0, to the minimum over F entries with these inner products and slopes.

    Past every bound where it is flat.

    A direction whose curvature is at most TOLERANCE / 8 counts as flat: lambda moves by sqrt 2 at
    most, which changes a slope by less than a fifth of TOLERANCE. So nothing depends on curvatures
    that rounding may have made or turned around, and where a slope along a flat direction matters
    at all, it is downhill to the end.
    """
    centred = face - face.mean(0) - face.mean(1, keepdim=True) + face.mean()
    # Growing all weights alike leaves the simplex: given the largest eigenvalue, that direction
    # mixes with no flat one.
    basis, size, mirrored = (centred + 2 * centred.norm() / len(face)).svd()
    curvature, along = size * (basis * mirrored).sum(0).sign(), basis.T @ (slope.mean() - slope)
    flat = curvature <= TOLERANCE / 8
    downhill = along * flat
    steps = (
        downhill * BEYOND if downhill.norm() > TOLERANCE / 4 else (along / curvature).masked_fill(flat, 0.0)
    )
    move: Tensor = basis @ steps
    return move - move.mean()


def _gains(slope: Tensor, point: Tensor, low: Tensor, high: Tensor, free: Tensor) -> Tensor:
    """How much freeing each bound entry gains, per unit, against the multiplier of the sum, [V]."""
    stuck = low == high
    lower, upper = (point <= low) & ~free & ~stuck, (point > low) & ~free & ~stuck
    infinite = float("inf")
    if bool(free.any()):
        level = slope[free].mean()
    else:
        level = (slope.masked_fill(~lower, infinite).min() + slope.masked_fill(~upper, -infinite).max()) / 2
    gain = (level - slope).where(lower, slope - level)
    return gain.masked_fill(~(lower | upper), -infinite)
