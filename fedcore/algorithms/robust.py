"""Aggregators that a minority of malicious clients cannot move far.

In the terms of their papers, n clients send vectors of which f may be anything. Here the vectors
are the changes Delta_i [D] of the M clients of a cohort, and f = floor(malicious M). Unless an
aggregator says otherwise, each client counts the same, whatever its weight in the cohort: a client
that could choose its weight could choose the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.aggregators import AggregatorSpec
from fedcore.algorithms.min_norm import CHUNK, inner_products
from fedcore.block import MAX_CLIENTS, PositiveRate, floor_share
from fedcore.core import Aggregate, Aggregator, Cohort, Vectors, clip_factors
from fedcore.lazy import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")

MaliciousShare = Annotated[float, Field(ge=0, lt=0.5)]


@dataclass(frozen=True)
class RobustAggregator(Aggregator):
    """An aggregator that looks at each client's change."""

    def weighted_sums(self, cohort: Cohort) -> None:
        return None


@dataclass(frozen=True)
class TrimmedMean(RobustAggregator):
    """The mean, coordinate by coordinate, without the `share` M largest and as many smallest
    values. `share` = 1/2 leaves the median: the middle value, or the mean of the middle two.
    """

    assures = Aggregator.assures

    share: float

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        count = len(seen)
        trimmed = min(floor_share(self.share, count), (count - 1) // 2)
        middle = _by_columns(lambda values: values[trimmed : count - trimmed].mean(dim=0), seen)
        return Aggregate(middle, undefined(seen), aggregator_state)


@dataclass(frozen=True)
class Krum(RobustAggregator):
    """The mean of the `selected` changes that are closest to their neighbours."""

    assures = Aggregator.assures

    malicious: float
    selected: int

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        scores = krum_scores(squared_distances(seen), floor_share(self.malicious, len(seen)))
        chosen = scores.argsort(stable=True)[: self.selected]
        coefficients = torch.zeros_like(seen[:, 0])
        coefficients[chosen] = 1.0 / len(chosen)
        return Aggregate(coefficients @ seen, coefficients, aggregator_state)


@dataclass(frozen=True)
class Bulyan(RobustAggregator):
    """The mean around the median of the changes that Krum selects one after the other."""

    assures = Aggregator.assures

    malicious: float

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        count = len(seen)
        f = min(floor_share(self.malicious, count), (count - 1) // 4)
        chosen = select_by_krum(squared_distances(seen), f, count - 2 * f)
        kept = count - 4 * f

        def closest(ordered: Tensor) -> Tensor:
            median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
            # The values closest to the median lie side by side: those whose farther end is nearest.
            windows = len(ordered) - kept + 1
            reach = torch.maximum(median - ordered[:windows], ordered[kept - 1 :] - median)
            rows = reach.argmin(dim=0) + torch.arange(kept, device=ordered.device)[:, None]
            return ordered.gather(0, rows).mean(dim=0)

        return Aggregate(_by_columns(closest, seen[chosen]), undefined(seen), aggregator_state)


@dataclass(frozen=True)
class GeometricMedian(RobustAggregator):
    """The point with the least weighted sum of distances, by smoothed Weiszfeld steps."""

    assures = Aggregator.assures

    iterations: int
    smoothing: float

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        weights = cohort.weights / cohort.weights.sum()
        coefficients = weights
        for _ in range(self.iterations):
            distances = (seen - coefficients @ seen).norm(dim=1)
            inverse = weights / distances.clamp(min=self.smoothing)
            coefficients = inverse / inverse.sum()
        return Aggregate(coefficients @ seen, coefficients, aggregator_state)


@dataclass(frozen=True)
class CentredClipping(RobustAggregator):
    """Steps from the last aggregate towards the changes, each of bounded length."""

    assures = Aggregator.assures

    radius: float
    iterations: int

    def start(self, x: Tensor) -> Vectors:
        return {"centre": torch.zeros_like(x)}

    def vectors_kept(self) -> tuple[int, int]:
        return 1, 0

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        centre = aggregator_state["centre"]
        coefficients = torch.zeros_like(seen[:, 0])
        for _ in range(self.iterations):
            away = seen - centre
            factors = clip_factors(away.norm(dim=1), self.radius) / len(seen)
            centre = centre + factors @ away
            coefficients = coefficients * (1 - factors.sum()) + factors
        return Aggregate(centre, coefficients, {"centre": centre})


@dataclass(frozen=True)
class NormBounding(RobustAggregator):
    """The weighted mean of the changes, none longer than `radius`."""

    assures = Aggregator.assures

    radius: float

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        coefficients = cohort.weights * clip_factors(seen.norm(dim=1), self.radius)
        return Aggregate(coefficients @ seen, coefficients, aggregator_state)


@dataclass(frozen=True)
class Bucketing(RobustAggregator):
    """Another aggregator over the means of random buckets of `size` changes."""

    assures = Aggregator.assures

    within: Aggregator
    size: int

    def needs_order(self) -> bool:
        return True

    def start(self, x: Tensor) -> Vectors:
        return self.within.start(x)

    def vectors_kept(self) -> tuple[int, int]:
        return self.within.vectors_kept()

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        assert cohort.order is not None
        buckets = torch.split(cohort.order, self.size)
        means = torch.stack([seen[rows].mean(dim=0) for rows in buckets])
        # Aggregators of this module read nothing else of a cohort.
        weights = torch.stack([cohort.weights[rows].sum() for rows in buckets])
        combined = self.within.combine(means, replace(cohort, weights=weights), aggregator_state)
        coefficients = torch.zeros_like(seen[:, 0])
        for rows, coefficient in zip(buckets, combined.coefficients, strict=True):
            coefficients[rows] = coefficient / len(rows)
        return replace(combined, coefficients=coefficients)


def _by_columns(reduce: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """`reduce`, which maps sorted columns [M, d] to [d], of all columns of `values` [M, D]."""
    parts = torch.split(values, CHUNK, dim=1)
    return torch.cat([reduce(part.sort(dim=0).values) for part in parts])


def undefined(seen: Tensor) -> Tensor:
    """Coefficients [M] of an aggregate that is not linear in the changes [M, D]: NaN."""
    return torch.full_like(seen[:, 0], torch.nan)


def squared_distances(values: Tensor) -> Tensor:
    """|v_i - v_j|^2 [M, M] of `values` v [M, D], in double precision."""
    gram = inner_products(values, values)
    lengths = gram.diagonal()
    return (lengths[:, None] + lengths - 2 * gram).clamp(min=0).fill_diagonal_(0)


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """The sum [M] of each client's M - f - 2 smallest squared distances to others (Blanchard et
    al.), of one at least, where `distances` is [M, M].
    """
    neighbours = max(1, len(distances) - f - 2)
    # The distance to itself, 0, is always among the smallest, and adds nothing.
    return torch.sum(distances.sort(dim=1).values[:, : neighbours + 1], dim=1)


def select_by_krum(distances: Tensor, f: int, wanted: int) -> Tensor:
    """The rows [wanted], ascending, that Krum selects one after the other from those left (El
    Mhamdi et al.), where `distances` is [M, M].
    """
    left, chosen = list(range(len(distances))), []
    for _ in range(wanted):
        rows = torch.tensor(left, device=distances.device)
        chosen.append(left.pop(int(krum_scores(distances[rows][:, rows], f).argmin())))
    return torch.tensor(sorted(chosen), device=distances.device)


class RobustAggregatorSpec(AggregatorSpec):
    """An aggregator against malicious clients, with random buckets before it if wanted."""

    bucket_size: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] = 1
    """Changes are averaged in random buckets of this many, and the means are aggregated: s of
    Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing,
    ICLR 2022 (default: no buckets). A bucket with one malicious client is malicious.
    """

    def build(self) -> Aggregator:
        within = self.aggregator()
        return within if self.bucket_size == 1 else Bucketing(within, self.bucket_size)

    def aggregator(self) -> Aggregator:
        """The aggregator of the changes, or of the means of buckets."""
        raise NotImplementedError


class MedianAggregator(RobustAggregatorSpec):
    """The median of the changes, coordinate by coordinate; of an even number, the mean of the
    middle two.
    """

    source = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (coordinate-wise median)"

    kind: Literal["median"] = "median"

    def aggregator(self) -> Aggregator:
        return TrimmedMean(0.5)


class TrimmedMeanAggregator(RobustAggregatorSpec):
    """The mean, coordinate by coordinate, of the changes without the largest and smallest values."""

    source = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (trimmed mean)"
    example = {"trimmed": 0.2}

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    trimmed: MaliciousShare = 0.1
    """beta of the paper: floor(trimmed M) values are left out at each end, if one remains."""

    def aggregator(self) -> Aggregator:
        return TrimmedMean(self.trimmed)


class KrumAggregator(RobustAggregatorSpec):
    """The change with the least sum of squared distances to its M - f - 2 nearest others; Multi-Krum
    takes the mean of several.

    The guarantee needs M >= 2 f + 3. In smaller cohorts one neighbour counts at least.
    """

    source = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017 (Krum and Multi-Krum)"
    example = {"malicious": 0.2, "selected": 3}

    kind: Literal["krum"] = "krum"
    malicious: MaliciousShare = 0.2
    """The share of malicious clients to withstand: f = floor(malicious M)."""
    selected: Annotated[int, Field(ge=1)] = 1
    """Changes in the mean: m of Multi-Krum; 1 is Krum. Of a smaller cohort, all."""

    def aggregator(self) -> Aggregator:
        return Krum(self.malicious, self.selected)


class BulyanAggregator(RobustAggregatorSpec):
    """Krum selects M - 2 f changes, one after the other; of these, coordinate by coordinate, the mean
    of the M - 4 f values closest to their median.

    The guarantee needs M >= 4 f + 3. f is never taken larger than (M - 1) / 4. The authors' code is
    Bulyan over Multi-Krum: each of M - 2 f - 2 selections is a mean of the best changes that are left.
    """

    source = "El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018"
    example = {"malicious": 0.2}

    kind: Literal["bulyan"] = "bulyan"
    malicious: Annotated[float, Field(ge=0, lt=0.25)] = 0.2
    """The share of malicious clients to withstand: f = floor(malicious M)."""

    def aggregator(self) -> Aggregator:
        return Bulyan(self.malicious)


class GeometricMedianAggregator(RobustAggregatorSpec):
    """The point v with the least sum_i w_i |Delta_i - v|, where w are the weights of the cohort.

        beta_i = w_i / max(smoothing, |Delta_i - v|)
        v <- sum_i beta_i Delta_i / sum_i beta_i

    from the weighted mean on. The authors' code stops early once the sum hardly falls, and takes
    smoothing = 1e-5 and at most 4 steps by default.
    """

    source = "Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, 2019 (RFA)"
    example = {"iterations": 5}

    kind: Literal["geometric_median"] = "geometric_median"
    iterations: Annotated[int, Field(ge=1, le=1000)] = 3
    """Weiszfeld steps."""
    smoothing: PositiveRate = 1e-6
    """nu of the paper: distances below count as this (Euclidean, of whole changes)."""

    def aggregator(self) -> Aggregator:
        return GeometricMedian(self.iterations, self.smoothing)


class CentredClippingAggregator(RobustAggregatorSpec):
    """From the last round's aggregate v, steps towards the changes, none of which counts for more
    than its part of `radius`.

        v <- v + (1/M) sum_i (Delta_i - v) min(1, radius / |Delta_i - v|)

    The paper aggregates the momenta of clients; here it aggregates their changes.
    """

    source = "Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021"
    example = {"radius": 0.5, "iterations": 3}

    kind: Literal["centred_clipping"] = "centred_clipping"
    radius: PositiveRate = 1.0
    """tau of the paper."""
    iterations: Annotated[int, Field(ge=1, le=1000)] = 1
    """L of the paper."""

    def aggregator(self) -> Aggregator:
        return CentredClipping(self.radius, self.iterations)


class NormBoundingAggregator(RobustAggregatorSpec):
    """The weighted mean of the changes, each shortened to length `radius` if it is longer."""

    source = "Sun et al., Can You Really Backdoor Federated Learning?, 2019 (norm thresholding)"
    example = {"radius": 0.5}

    kind: Literal["norm_bounding"] = "norm_bounding"
    radius: PositiveRate = 1.0
    """M of the paper: the longest change that counts in full."""

    def aggregator(self) -> Aggregator:
        return NormBounding(self.radius)
