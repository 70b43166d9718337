"""Busy and idle time on the simulated clock, and staleness of asynchronous runs."""

from __future__ import annotations

from typing import Literal

from fedcore.measures.base import Evaluated, Measured, MeasureInfo, MeasureSpec, describe_share


class DeviceUse(MeasureSpec):
    """Busy clients and staleness of a round on the simulated clock."""

    of = "round"
    infos = (
        MeasureInfo(
            "staleness",
            "mean staleness of the clients that arrived: how many steps the server took since each started"
            " (FedBuff)",
            needs="asynchrony",
            least=0.0,
        ),
        MeasureInfo(
            "max_staleness", "the largest staleness of a client that arrived", needs="asynchrony", least=0.0
        ),
        MeasureInfo(
            "concurrency",
            "mean number of clients that computed or sent in the round, over simulated time",
            needs="devices",
            least=0.0,
        ),
        describe_share(
            "idle_share",
            "1 - `concurrency` / number of selected clients (of all tiers in `fedat`), or `concurrency` of"
            " `asynchrony`: time in which clients wait for the slowest, or too few can be started",
            "min",
            "devices",
            samples=None,
        ),
    )

    kind: Literal["timing"] = "timing"

    def compute(self, evaluated: Evaluated) -> Measured:
        """Nothing without the simulated clock, and no staleness of synchronous rounds."""
        if evaluated.round is None or (timing := evaluated.round.timing) is None:
            return {}
        used: Measured = {"concurrency": timing.busy, "idle_share": max(0.0, 1 - timing.busy / timing.places)}
        if timing.staleness is None:
            return used
        mean, most = float(timing.staleness.mean()), float(timing.staleness.max())
        return {"staleness": mean, "max_staleness": most, **used}
