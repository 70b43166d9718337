"""Centred clipping (Karimireddy, He and Jaggi, ICML 2021): an aggregate that outliers cannot move far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedq.extensions import Aggregate, Aggregator, AggregatorSpec, Cohort, PositiveRate, Vectors, torch


@dataclass(frozen=True)
class Clipping(Aggregator):
    radius: float

    def start(self, x: torch.Tensor) -> Vectors:
        return {"centre": torch.zeros_like(x)}

    def vectors_kept(self) -> tuple[int, int]:
        return 1, 0

    def weighted_sums(self, cohort: Cohort) -> None: ...

    def combine(self, deltas: torch.Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        away = deltas - aggregator_state["centre"]
        factors = cohort.weights * (self.radius / away.norm(dim=1).clamp(min=1e-30)).clamp(max=1)
        centre = aggregator_state["centre"] + factors @ away
        return Aggregate(centre, factors, {"centre": centre})


class OurClipping(AggregatorSpec):
    """v <- v + sum_i w_i (delta_i - v) min(1, radius / |delta_i - v|), from the last round's v."""

    source = "Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021"
    kind: Literal["our_clipping"] = "our_clipping"
    radius: PositiveRate = 1.0
    """tau of the paper: how far a client can move the aggregate, times its weight."""

    def build(self) -> Aggregator:
        return Clipping(self.radius)
