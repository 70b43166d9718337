"""A measure of predictions: how unequally the model serves the clients."""

from __future__ import annotations

from math import nan
from typing import Literal

from fedq.extensions import Evaluated, MeasureSpec


class ClientGap(MeasureSpec):
    """Accuracy of the client that is served best minus that of the one served worst.

    Each on its own test samples; undefined where test samples belong to no client.
    """

    interface = "2.0"
    of = "predictions"
    needs = "classes"
    better = "min"
    kind: Literal["client_gap"] = "client_gap"

    def compute(self, seen: Evaluated) -> float:
        found = seen.predictions()
        right = (found.outputs.argmax(-1) == found.labels).double()
        owners = found.clients[found.clients >= 0].unique()
        shares = [float(right[found.clients == owner].mean()) for owner in owners]
        return max(shares) - min(shares) if shares else nan
