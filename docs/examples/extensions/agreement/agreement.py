"""A measure: how well the clients of a round agree with the server's direction."""

from __future__ import annotations

from typing import Literal

from fedq.extensions import Evaluated, MeasureSpec


class Agreement(MeasureSpec):
    """Mean cosine between the clients' changes and the direction of the round; 1 if all agree.

    Undefined where a change or the direction is zero.
    """

    interface = "2.0"
    of = "round"
    needs_deltas = True
    better = "max"
    kind: Literal["agreement"] = "agreement"

    def compute(self, seen: Evaluated) -> float:
        deltas, direction = seen.round.deltas, seen.round.combined.direction
        cosines = deltas @ direction / (deltas.norm(dim=1) * direction.norm())
        return float(cosines.mean())
