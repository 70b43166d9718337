"""Aggregators that a minority of malicious clients cannot move far.

In the terms of their papers, n clients send vectors of which f may be anything. Here the vectors
are the changes Delta_i [D] of the M clients of a cohort, and f = floor(malicious M). Unless an
aggregator says otherwise, each client counts the same, whatever its weight in the cohort: a client
that could choose its weight could choose the result. Changes that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.algorithms.aggregators import AggregatorSpec
from fedcore.algorithms.min_norm import CHUNK, inner_products
from fedcore.block import MAX_CLIENTS, PositiveRate, floor_share
from fedcore.core import Aggregate, Aggregator, Cohort, CohortNeed, Statement, Vectors, clip_factors
from fedcore.errors import SpecificationError
from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

MaliciousShare = Annotated[float, Field(ge=0, lt=0.5)]


@dataclass(frozen=True)
class RobustAggregator(Aggregator):
    """An aggregator that looks at each client's change.

    Changes that are not finite are left out first, and count as malicious. The model stays if there
    are more of them than the aggregator withstands, or too few others for it to withstand its share.
    """

    described = {
        **Aggregator.described,
        "bucketed": Statement(
            ("for_model", "needs", "coefficients", "weighted_sums", "of_round", "combine", "combine_finite"),
            "`bucketed = False`",
        ),
    }
    drops_changes = True
    bucketed: ClassVar[bool] = True
    """True if it may be given the means of buckets: `Bucketing` passes on what it overrides."""

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def withstands(self, weights: Tensor, dropped: Tensor) -> bool:
        """True if the changes that are not `dropped` [M], at least one of which is, can be aggregated."""
        return 2 * int(dropped.sum()) < len(dropped)

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        return self.combine_finite(seen, cohort.weights, ~seen.isfinite().all(dim=1), aggregator_state)

    def combine_finite(self, seen: Tensor, weights: Tensor, dropped: Tensor, state: Vectors) -> Aggregate:
        """Combine the changes [M, D] that are not `dropped` [M]."""
        if not bool(dropped.any()):
            return replace(self.combine_all(seen, weights, 0, state), dropped=dropped)
        coefficients = torch.zeros_like(seen[:, 0])
        if not self.withstands(weights, dropped):
            return Aggregate(torch.zeros_like(seen[0]), coefficients, state, dropped)
        left = weights[~dropped]
        scaled, lost = left * (weights.sum() / left.sum()), len(weights) - len(left)
        combined = self.combine_all(seen[~dropped], scaled, lost, state)
        coefficients[~dropped] = combined.coefficients
        return replace(combined, coefficients=coefficients, dropped=dropped)

    def combine_all(self, seen: Tensor, weights: Tensor, lost: int, state: Vectors) -> Aggregate:
        """Combine finite changes [M, D] with aggregation weights [M]; `lost` others were left out."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrimmedMean(RobustAggregator):
    """The mean, coordinate by coordinate, without the `share` M largest and as many smallest
    values. `share` = 1/2 leaves the median: the middle value, or the mean of the middle two.
    """

    assures = Aggregator.assures

    share: float

    def trimmed(self, count: int) -> int:
        """f: how many of `count` values are left out at each end."""
        return min(floor_share(self.share, count), (count - 1) // 2)

    def withstands(self, weights: Tensor, dropped: Tensor) -> bool:
        return int(dropped.sum()) <= self.trimmed(len(dropped))

    def combine_all(self, seen: Tensor, weights: Tensor, lost: int, state: Vectors) -> Aggregate:
        count, trimmed = len(seen), self.trimmed(len(seen))
        middle = _by_columns(lambda values: values[trimmed : count - trimmed].mean(dim=0), seen)
        return Aggregate(middle, undefined(seen), state)


@dataclass(frozen=True)
class Krum(RobustAggregator):
    """The mean of the `selected` changes that are closest to their neighbours."""

    assures = Aggregator.assures

    malicious: float
    selected: int

    def withstands(self, weights: Tensor, dropped: Tensor) -> bool:
        lost, f = int(dropped.sum()), floor_share(self.malicious, len(dropped))
        return lost <= f and len(dropped) - lost >= 2 * (f - lost) + 3

    def combine_all(self, seen: Tensor, weights: Tensor, lost: int, state: Vectors) -> Aggregate:
        f = floor_share(self.malicious, len(seen) + lost) - lost
        scores = krum_scores(squared_distances(seen), f)
        chosen = scores.argsort(stable=True)[: self.selected]
        coefficients = torch.zeros_like(seen[:, 0])
        coefficients[chosen] = 1.0 / len(chosen)
        return Aggregate(seen[chosen].mean(dim=0), coefficients, state)


@dataclass(frozen=True)
class Bulyan(RobustAggregator):
    """The mean around the median of the changes that Krum selects one after the other."""

    assures = Aggregator.assures

    malicious: float

    def withstands(self, weights: Tensor, dropped: Tensor) -> bool:
        lost, f = int(dropped.sum()), floor_share(self.malicious, len(dropped))
        return lost <= f and len(dropped) - lost >= 4 * (f - lost) + 3

    def combine_all(self, seen: Tensor, weights: Tensor, lost: int, state: Vectors) -> Aggregate:
        count = len(seen)
        f = min(floor_share(self.malicious, count + lost) - lost, (count - 1) // 4)
        chosen = select_by_krum(squared_distances(seen), f, count - 2 * f)
        kept = count - 4 * f

        def closest(ordered: Tensor) -> Tensor:
            median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
            # The values closest to the median lie side by side: those whose farther end is nearest.
            windows = len(ordered) - kept + 1
            reach = torch.maximum(median - ordered[:windows], ordered[kept - 1 :] - median)
            rows = reach.argmin(dim=0) + torch.arange(kept, device=ordered.device)[:, None]
            return ordered.gather(0, rows).mean(dim=0)

        return Aggregate(_by_columns(closest, seen[chosen]), undefined(seen), state)


@dataclass(frozen=True)
class GeometricMedian(RobustAggregator):
    """The point with the least weighted sum of distances, by smoothed Weiszfeld steps."""

    assures = Aggregator.assures

    iterations: int
    smoothing: float

    def withstands(self, weights: Tensor, dropped: Tensor) -> bool:
        return bool(2 * (weights * dropped).sum() < weights.sum())

    def combine_all(self, seen: Tensor, weights: Tensor, lost: int, state: Vectors) -> Aggregate:
        weights = weights / weights.sum()
        coefficients = self._start(seen, weights)
        for _ in range(self.iterations):
            distances = lengths(seen - coefficients @ seen)
            inverse = weights / distances.clamp(min=self.smoothing)
            coefficients = inverse / inverse.sum()
        return Aggregate(coefficients @ seen, coefficients, state)

    def _start(self, seen: Tensor, weights: Tensor) -> Tensor:
        """Coefficients [M] of the weighted mean; or of the change with the least sum of distances, if more
        than half of the weight is closer to it than the mean: a few steps do not lead back from a mean
        that one client has moved far away.
        """
        # In units in which no sum of distances overflows.
        unit = seen / seen.abs().max().clamp(min=1.0)
        apart = squared_distances(unit).sqrt()
        middle = int((apart @ weights.double()).argmin())
        radii, order = apart[middle].sort()
        radius = radii[(weights[order].double().cumsum(0) <= 0.5).sum().clamp(max=len(radii) - 1)]
        if bool((weights @ unit - unit[middle]).norm() <= radius):
            return weights
        nearest: Tensor = torch.zeros_like(weights)
        nearest[middle] = 1.0
        return nearest


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

    def combine_all(self, seen: Tensor, weights: Tensor, lost: int, state: Vectors) -> Aggregate:
        centre = state["centre"]
        coefficients = torch.zeros_like(seen[:, 0])
        for _ in range(self.iterations):
            away = seen - centre
            factors = clip_factors(lengths(away), self.radius) / len(seen)
            centre = centre + factors @ away
            coefficients = coefficients * (1 - factors.sum()) + factors
        return Aggregate(centre, coefficients, {"centre": centre})


@dataclass(frozen=True)
class NormBounding(RobustAggregator):
    """The weighted mean of the changes, none longer than `radius`."""

    assures = Aggregator.assures

    radius: float

    def combine_all(self, seen: Tensor, weights: Tensor, lost: int, state: Vectors) -> Aggregate:
        coefficients = weights * clip_factors(lengths(seen), self.radius)
        return Aggregate(coefficients @ seen, coefficients, state)


@dataclass(frozen=True)
class Bucketing(RobustAggregator):
    """Another aggregator over the means of random buckets of `size` changes.

    A bucket with a change that is left out counts as malicious, and is the mean of the others.
    """

    assures = Aggregator.assures
    bucketed = False

    within: RobustAggregator
    size: int

    def needs(self) -> frozenset[CohortNeed]:
        return frozenset({"order"})

    def start(self, x: Tensor) -> Vectors:
        return self.within.start(x)

    def vectors_kept(self) -> tuple[int, int]:
        return self.within.vectors_kept()

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        assert cohort.order is not None
        dropped, coefficients = ~seen.isfinite().all(dim=1), torch.zeros_like(seen[:, 0])
        buckets = torch.split(cohort.order, self.size)
        count = len(buckets)
        weights = torch.stack([cohort.weights[rows].sum() for rows in buckets])
        if bool(dropped.any()):
            spoilt = torch.stack([dropped[rows].any() for rows in buckets])
            if not self.within.withstands(weights, spoilt):
                return Aggregate(torch.zeros_like(seen[0]), coefficients, aggregator_state, dropped)
            buckets = tuple(left for rows in buckets if len(left := rows[~dropped[rows]]))
            weights = torch.stack([cohort.weights[rows].sum() for rows in buckets])
            weights = weights * (cohort.weights.sum() / weights.sum())
        means = torch.stack([seen[rows].mean(dim=0) for rows in buckets])
        combined = self.within.combine_all(means, weights, count - len(buckets), aggregator_state)
        for rows, coefficient in zip(buckets, combined.coefficients, strict=True):
            coefficients[rows] = coefficient / len(rows)
        return replace(combined, coefficients=coefficients, dropped=dropped)


def _by_columns(reduce: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """`reduce`, which maps sorted columns [M, d] to [d], of all columns of `values` [M, D]."""
    parts = torch.split(values, CHUNK, dim=1)
    return torch.cat([reduce(part.sort(dim=0).values) for part in parts])


def undefined(seen: Tensor) -> Tensor:
    """Coefficients [M] of an aggregate that is not linear in the changes [M, D]: NaN."""
    return torch.full_like(seen[:, 0], torch.nan)


def lengths(vectors: Tensor) -> Tensor:
    """|v_i| [M] of finite `vectors` v [M, D], also where the squares of entries are beyond their
    precision.
    """
    norms: Tensor = vectors.norm(dim=1)
    if bool(norms.isfinite().all()):
        return norms
    largest = vectors.abs().amax(dim=1)
    return torch.where(norms.isfinite(), norms, largest * (vectors / largest[:, None]).norm(dim=1))


def squared_distances(values: Tensor) -> Tensor:
    """|v_i - v_j|^2 [M, M] of finite `values` v [M, D], in double precision; infinite where it is
    beyond that.
    """
    gram = inner_products(values, values)
    squares = gram.diagonal()
    apart = (squares[:, None] + squares - 2 * gram).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return apart.clamp(min=0).fill_diagonal_(0)


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
        if self.bucket_size == 1:
            return within
        if not within.bucketed:
            raise SpecificationError(
                "/aggregator/bucket_size",
                f"{type(within).__name__} cannot be given means of buckets (`bucketed`): omit this",
            )
        return Bucketing(within, self.bucket_size)

    def aggregator(self) -> RobustAggregator:
        """The aggregator of the changes, or of the means of buckets."""
        raise NotImplementedError


class MedianAggregator(RobustAggregatorSpec):
    """The median of the changes, coordinate by coordinate; of an even number, the mean of the
    middle two.
    """

    source = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (coordinate-wise median)"

    kind: Literal["median"] = "median"

    def aggregator(self) -> RobustAggregator:
        return TrimmedMean(0.5)


class TrimmedMeanAggregator(RobustAggregatorSpec):
    """The mean, coordinate by coordinate, of the changes without the largest and smallest values."""

    source = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018 (trimmed mean)"
    example = {"trimmed": 0.2}

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    trimmed: MaliciousShare = 0.1
    """beta of the paper: floor(trimmed M) values are left out at each end, if one remains."""

    def aggregator(self) -> RobustAggregator:
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

    def aggregator(self) -> RobustAggregator:
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

    def aggregator(self) -> RobustAggregator:
        return Bulyan(self.malicious)


class GeometricMedianAggregator(RobustAggregatorSpec):
    """The point v with the least sum_i w_i |Delta_i - v|, where w are the weights of the cohort.

        beta_i = w_i / max(smoothing, |Delta_i - v|)
        v <- sum_i beta_i Delta_i / sum_i beta_i

    from the weighted mean on. Departure: it begins at the change with the least such sum, if more than
    half of the weight is closer to that than the mean, since a few steps do not lead back from far
    away. The authors' code stops early once the sum hardly falls, and takes smoothing = 1e-5 and at
    most 4 steps by default.
    """

    source = "Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, 2019 (RFA)"
    example = {"iterations": 5}

    kind: Literal["geometric_median"] = "geometric_median"
    iterations: Annotated[int, Field(ge=1, le=1000)] = 3
    """Weiszfeld steps."""
    smoothing: PositiveRate = 1e-6
    """nu of the paper: distances below count as this (Euclidean, of whole changes)."""

    def aggregator(self) -> RobustAggregator:
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

    def aggregator(self) -> RobustAggregator:
        return CentredClipping(self.radius, self.iterations)


class NormBoundingAggregator(RobustAggregatorSpec):
    """The weighted mean of the changes, each shortened to length `radius` if it is longer."""

    source = "Sun et al., Can You Really Backdoor Federated Learning?, 2019 (norm thresholding)"
    example = {"radius": 0.5}

    kind: Literal["norm_bounding"] = "norm_bounding"
    radius: PositiveRate = 1.0
    """M of the paper: the longest change that counts in full."""

    def aggregator(self) -> RobustAggregator:
        return NormBounding(self.radius)
