"""The best arms of an experiment, and those that cannot be distinguished from them.

Multiple comparisons with the best (Hsu 1984), blocked by seed, with a variance for each arm that is
shrunk towards what the arms have in common. SciPy and statsmodels have none, and `scipy.stats.dunnett`
knows neither blocks nor unequal variances.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from math import frexp, inf, isfinite
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fedcore.lazy import np
from fedcore.statistics.summary import LEAST_SEEDS, LEVEL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    Places: TypeAlias = NDArray[np.intp]

ROUNDING = 1e-12
"""Figures that agree to this share of their size agree to rounding."""
NEAREST_SHARE = 5e-5
"""On the scale of logits, a share nearer to 0 or 1 counts as this far from it: half a sample of 10,000."""
MOST_SEEDS = 1_000
"""Where more seeds than these would be needed, their number is not given."""
_UPPER = 0.8
"""The variance is taken at this quantile, upwards, when seeds are planned."""
_LEAST_SHARE = 1e-5
"""A variance counts as this share of the pooled one at least, for its logarithm."""


class ComparisonScale(StrEnum):
    """The scale on which arms differ by the effects of arm and seed added; chosen before the data."""

    IDENTITY = "identity"
    LOG = "log"
    """For losses, and other figures above 0."""
    LOGIT = "logit"
    """For accuracies, and other shares."""


class ArmVerdict(StrEnum):
    """The conclusion about an arm beside the best of the others, or beside the control: the sign of its
    interval.
    """

    BEST = "best"
    """Better than all others."""
    AMONG_BEST = "among_best"
    """It may be the best, or equal to it."""
    WORSE = "worse"
    """Another arm is better, or the control is."""
    BETTER = "better"
    """Better than the control."""
    UNCLEAR = "unclear"
    """It may be better or worse than the control."""
    TOO_FEW_SEEDS = "too_few_seeds"
    NOT_COMPARED = "not_compared"
    """It has figures for fewer than two seeds that it shares with others, or shares none with most."""
    DIVERGED = "diverged"
    REFERENCE = "reference"
    """It is a line of reference, with which the others do not compete."""


_IN_SET = (ArmVerdict.BEST, ArmVerdict.AMONG_BEST)


class ArmBeside(NamedTuple):
    """An arm beside the best of the others, or the control; None where they were not compared."""

    seeds: int
    """Seeds for which the arm has a figure, or has diverged."""
    diverged: int
    """Of these, the seeds in which it diverged."""
    verdict: ArmVerdict | None
    """None for the control itself."""
    difference: float | None = None
    """Difference from the best of the others, or the control, in units of the figures and with their sign."""
    low: float | None = None
    """Lower end of its simultaneous interval, in the same units."""
    high: float | None = None


class BestSet(NamedTuple):
    """The arms that may be the best."""

    arms: tuple[int, ...]
    """Places of the arms in the set, ascending; empty with too few seeds."""
    beside: tuple[ArmBeside, ...]
    """Of every arm, in the order given."""
    seeds: int
    """Seeds that at least two of the compared arms have."""
    too_few_seeds: bool
    """Nothing is concluded: there are fewer than three such seeds, or three and two arms."""
    seeds_to_decide: int | None
    """Seeds with which the best arm would be distinguished from the member of the set that is hardest
    to tell from it, if they differ as they seem to; None where the set has one arm, where their means
    are equal, and above MOST_SEEDS.
    """
    control: tuple[ArmBeside, ...]
    """Of every arm, beside the control; empty where none is named."""


def find_best_arms(
    figures: Sequence[Mapping[int, float]],
    *,
    higher_is_better: bool,
    scale: ComparisonScale = ComparisonScale.IDENTITY,
    diverged: Sequence[Collection[int]] = (),
    control: int | None = None,
) -> BestSet:
    """Find the arms that may be the best, from their figures by seed.

    A best arm stays in the set, and all intervals cover, with a probability near 1 - LEVEL, as simulated in
    docs/statistics.md; exactly so for two arms, and for equal variances that are pooled.

    `diverged` has the seeds in which each arm diverged; figures that are not finite count as such. An arm
    that diverged in any is not in the set, and is not compared. Missing figures are taken to be missing by
    chance, so an arm that was stopped for its results must be left without any.

    On the scale h, figures are h(y_ij) = m_i + b_j + e_ij, for arm i and seed j. The interval [l, u] of
    m_i less the largest other m_j is found there. With r the estimate of that m_j, the ends given are

        h^-1(r + l) - h^-1(r)  and  h^-1(r + u) - h^-1(r)

    which are monotone in l and u, and 0 where they are. Where lower is better the figures are negated
    before, and the ends after, so that they keep the sign of the metric.

    Raises:
        ValueError: If a figure is not on the scale.
    """
    units = _Units.of(scale, figures, higher_is_better=higher_is_better)
    failed = [
        {*lost, *(seed for seed, value in by_seed.items() if not isfinite(value))}
        for by_seed, lost in zip(figures, diverged or [()] * len(figures), strict=True)
    ]
    beside = [
        ArmBeside(
            len(lost | by_seed.keys()),
            len(lost),
            ArmVerdict.DIVERGED if lost else ArmVerdict.NOT_COMPARED,
        )
        for by_seed, lost in zip(figures, failed, strict=True)
    ]
    live = [arm for arm, by_seed in enumerate(figures) if by_seed and not failed[arm]]
    rows, table = comparable(units.scaled([figures[arm] for arm in live]))
    arms, seeds = [live[row] for row in rows], table.shape[1]
    too_few = len(live) > 1 and (seeds < LEAST_SEEDS or (len(arms) == 2 and seeds == LEAST_SEEDS))
    if too_few:
        for arm in live:
            beside[arm] = beside[arm]._replace(verdict=ArmVerdict.TOO_FEW_SEEDS)
    against = [*beside] if control is not None else []
    if control is not None:
        against[control] = beside[control]._replace(verdict=None)
    if not arms:
        return BestSet((*live,) if len(live) == 1 else (), (*beside,), seeds, too_few, None, (*against,))
    fit = fit_arms(table)
    compared = _beside_best(fit, units, [beside[arm] for arm in arms])
    for arm, one in zip(arms, compared, strict=True):
        beside[arm] = one
    members = [row for row, one in enumerate(compared) if one.verdict in _IN_SET]
    if control in arms and not too_few:
        others = _beside_control(fit, units, arms.index(control), [against[arm] for arm in arms])
        for arm, one in zip(arms, others, strict=True):
            against[arm] = one
    return BestSet(
        tuple(arms[row] for row in members),
        (*beside,),
        seeds,
        too_few,
        _seeds_to_decide(fit, members or range(len(arms))),
        (*against,),
    )


class _Units(NamedTuple):
    """The scale, 1 or -1 so that the larger is the better on it, and the unit of its numbers."""

    scale: ComparisonScale
    sign: float
    size: float
    """1 on the scale IDENTITY in units of the figures: squares of very large ones are no numbers."""

    @classmethod
    def of(
        cls, scale: ComparisonScale, figures: Sequence[Mapping[int, float]], *, higher_is_better: bool
    ) -> "_Units":
        """Choose the unit for these figures."""
        sizes = [abs(value) for by_seed in figures for value in by_seed.values() if isfinite(value)]
        largest = max(sizes, default=1.0) if scale is ComparisonScale.IDENTITY else 1.0
        # Where squares are out of range a power of two, which changes no bit of a figure.
        size = 1.0 if 1e-100 < largest < 1e100 else 2.0 ** max(frexp(largest)[1] - 1, -1_000)
        return cls(scale, 1.0 if higher_is_better else -1.0, size)

    def scaled(self, figures: Sequence[Mapping[int, float]]) -> "Array":
        """Return the figures of arms as rows by seed, on the scale, the larger the better; nan where there
        is none.
        """
        seeds = sorted({seed for by_seed in figures for seed in by_seed})
        table = np.array([[by_seed.get(seed, np.nan) for seed in seeds] for by_seed in figures])
        if self.scale is ComparisonScale.LOG:
            self._check(table, table <= 0, "above 0")
            table = np.log(table)
        elif self.scale is ComparisonScale.LOGIT:
            self._check(table, (table < 0) | (table > 1), "between 0 and 1")
            table = np.clip(table, NEAREST_SHARE, 1 - NEAREST_SHARE)
            table = np.log(table / (1 - table))
        return self.sign / self.size * table.reshape(len(figures), len(seeds))

    def _check(self, table: "Array", wrong: "NDArray[np.bool_]", rule: str) -> None:
        if wrong.any():
            raise ValueError(
                f"{table[wrong][0]:g} is not {rule}, as the scale {self.scale} requires: choose identity"
            )

    def difference(self, apart: "Array", reference: "Array") -> list[float]:
        """Return h^-1(reference + apart) - h^-1(reference), with the sign of the metric; infinite where
        that is too large for a number.
        """
        with np.errstate(over="ignore"):
            ends = [self._figure(reference + apart), self._figure(reference)]
        return [float(value) for value in ends[0] - ends[1]]

    def _figure(self, scaled: "Array") -> "Array":
        if self.scale is ComparisonScale.LOG:
            return np.exp(self.sign * scaled)
        if self.scale is ComparisonScale.LOGIT:
            return 1 / (1 + np.exp(-self.sign * scaled))
        return self.sign * self.size * scaled

    def interval(self, low: "Array", high: "Array", reference: "Array") -> list[tuple[float, float]]:
        """Return both ends by arm, the smaller first."""
        ends = [self.difference(low, reference), self.difference(high, reference)]
        return [(min(pair), max(pair)) for pair in zip(*ends, strict=True)]


class Fit(NamedTuple):
    """Arms and seeds fitted to a table of k arms."""

    means: "Array"
    """Of the arms over all seeds [k]."""
    variances: "Array"
    """Variance of a figure of each arm [k], shrunk."""
    errors: "Array"
    """Standard errors of the differences of means [k, k]."""
    df: "Array"
    """Degrees of freedom of the variances [k]."""
    prior_df: float
    """Degrees of freedom that the arms lend each other, infinite where their variances are alike."""
    seeds: int


def comparable(table: "Array") -> tuple[list[int], "Array"]:
    """Return the rows of a table [arms, seeds] that can be compared, and the table of these alone.

    Figures that are missing are nan, and those that cannot be compared become it. A seed needs two arms,
    an arm two seeds, and of groups of arms that share no seed the largest counts.
    """
    present = ~np.isnan(table)
    while True:
        kept = present & (present.sum(0) >= 2) & (present.sum(1, keepdims=True) >= 2)
        if (kept == present).all():
            break
        present = kept
    linked = present @ present.T
    while (further := linked @ linked).sum() > linked.sum():
        linked = further
    if linked.any():
        present &= linked[linked.sum(1).argmax()][:, None]
    rows = np.flatnonzero(present.any(1))
    table = np.where(present, table, np.nan)
    return [int(row) for row in rows], table[rows][:, present.any(0)]


def fit_arms(table: "Array") -> Fit:
    """Fit arms and seeds to a comparable table by least squares, and a shrunk variance for each arm."""
    arm, seed = np.nonzero(~np.isnan(table))
    arms, seeds = table.shape
    solve = _least_squares(arm, seed)
    figures = table[arm, seed]
    middle = figures.mean()
    effects = solve @ (figures - middle)
    residuals = figures - middle - effects[arm] - effects[arms + seed]
    means = middle + effects[:arms] + effects[arms:].mean()
    free, left = np.bincount(arm) - 1, len(arm) - arms - seeds + 1
    pooled, grain = float(residuals @ residuals) / left, ROUNDING * float(np.abs(figures).max())
    if pooled <= grain**2:
        # Differences are the same for every seed, to rounding, to which means are equal too.
        means = grain * np.round(means / (grain or 1))
        variances = np.zeros(arms)
        prior_df = inf
    else:
        variances, prior_df = _shrink(_own_variances(arm, seed, solve, residuals), free, pooled)
    # The rows of `solve` for means miss a part that is common to all.
    covariance = (solve[:arms] * variances[arm]) @ solve[:arms].T
    spread = covariance.diagonal()
    errors = np.sqrt(np.maximum(spread[:, None] + spread - 2 * covariance, 0))
    return Fit(means, variances, errors, np.minimum(prior_df + free, left), prior_df, seeds)


def _least_squares(arm: "Places", seed: "Places") -> "Array":
    """Return the matrix that gives the effects of k arms, then of b seeds, of n figures [k + b, n]."""
    arms = arm.max() + 1
    design = np.zeros((len(arm), arms + seed.max() + 1))
    design[np.arange(len(arm)), arm] = 1
    design[np.arange(len(arm)), arms + seed] = 1
    return np.linalg.pinv(design.T @ design, rcond=1e-10, hermitian=True) @ design.T


def _own_variances(arm: "Places", seed: "Places", solve: "Array", residuals: "Array") -> "Array":
    """Return an estimate of each arm's variance, without bias but for its bound.

    With the residuals r = M y, the sum of squares of arm i has the mean sum_l A_il sigma_l^2, where A_il
    sums the squares of M over the cells of arms i and l. Solved for sigma^2, this is Grubbs' estimate

        g_i = k/(k - 2) [s_i^2 - sum_l s_l^2 / (k (k - 1))],  s_i^2 = sum_j r_ij^2 / (b - 1)

    where no cell of k arms and b seeds is missing (Grubbs 1948), and for two arms half the variance of
    their difference. It is not below s_i^2 / 4.
    """
    arms = arm.max() + 1
    expected = np.empty((arms, arms))
    for one in range(arms):
        own = np.flatnonzero(arm == one)
        rows = -(solve[one] + solve[arms + seed[own]])
        rows[np.arange(len(own)), own] += 1
        expected[one] = np.bincount(arm, (rows**2).sum(0))
    squares = np.bincount(arm, residuals**2)
    solved = np.linalg.pinv(expected, rcond=1e-8, hermitian=True) @ squares
    return np.maximum(solved, squares / (np.bincount(arm) - 1) / 4)


def _shrink(own: "Array", free: "Places", pooled: float) -> tuple["Array", float]:
    """Return the variances shrunk towards the pooled one, and the degrees of freedom d_0 of that.

    The variances are taken as scaled inverse chi^2 with d_0 degrees of freedom. Moments of the logarithms
    of the estimates g_i, with d_i degrees of freedom, give d_0 (Smyth 2004, section 6.2), and

        v_i = (d_0 pooled + d_i g_i) / (d_0 + d_i)

    Smyth shrinks towards the scale of that distribution, which is below the pooled variance; with few
    seeds the intervals would be too short (docs/statistics.md). Where the logarithms vary no more than by
    chance, d_0 is infinite.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    logs = np.log(np.maximum(own, _LEAST_SHARE * pooled)) - digamma(free / 2) + np.log(free / 2)
    excess = float(logs.var(ddof=1) - polygamma(1, free / 2).mean())
    if excess < 1e-6:
        return np.full(len(own), pooled), inf
    half = np.exp(brentq(lambda x: polygamma(1, np.exp(x)) - excess, -15, 15))
    prior_df = 2 * float(half)
    return (prior_df * pooled + free * own) / (prior_df + free), prior_df


def _beside_best(fit: Fit, units: _Units, blank: Sequence[ArmBeside]) -> list[ArmBeside]:
    """Compare each arm of the fit with the best of the others; with too few seeds, without intervals.

    Arm i is in the set unless (m_j - m_i) / SE_ij > c_i for a j. The interval of m_i less the largest
    other m_j (Edwards and Hsu 1983) reaches

        to max(0, min_j [m_i - m_j + c_i SE_ij]),
        from min_j min(0, m_i - m_j - c_j SE_ij) over the other j in the set; from 0 if i is the set

    so an arm is in the set if its upper end is above 0, or if nothing is left to chance and none is better.
    """
    arms = len(fit.means)
    apart = fit.means[:, None] - fit.means
    np.fill_diagonal(apart, inf)
    others = np.array([np.delete(fit.means, arm).max() for arm in range(arms)])
    differences = units.difference(fit.means - others, others)
    found = [one._replace(difference=difference) for one, difference in zip(blank, differences, strict=True)]
    if any(one.verdict is ArmVerdict.TOO_FEW_SEEDS for one in blank):
        return found
    critical = np.array([critical_value(fit, arm) for arm in range(arms)])
    high = np.maximum(0, (apart + critical[:, None] * fit.errors).min(1))
    member = (high > 0) | (apart.min(1) >= 0)
    reach = np.where(member, np.minimum(0, apart - critical * fit.errors), 0)
    np.fill_diagonal(reach, 0)
    low = reach.min(1)
    ends = units.interval(low, high, others)
    return [
        one._replace(verdict=_verdict(below, above), low=pair[0], high=pair[1])
        for one, below, above, pair in zip(found, low, high, ends, strict=True)
    ]


def _verdict(low: float, high: float) -> ArmVerdict:
    if low == 0 < high:
        return ArmVerdict.BEST
    return ArmVerdict.WORSE if low < 0 == high else ArmVerdict.AMONG_BEST


def _beside_control(fit: Fit, units: _Units, control: int, blank: Sequence[ArmBeside]) -> list[ArmBeside]:
    """Compare each arm of the fit with the control, two-sided: m_i - m_0 -+ c SE_i0 (Dunnett 1955)."""
    reference = np.full(len(fit.means), fit.means[control])
    apart = fit.means - reference
    reach = critical_value(fit, control, two_sided=True) * fit.errors[control]
    below, above = apart - reach, apart + reach
    found = [
        one._replace(
            verdict=ArmVerdict.BETTER if low > 0 else ArmVerdict.WORSE if high < 0 else ArmVerdict.UNCLEAR,
            difference=difference,
            low=ends[0],
            high=ends[1],
        )
        for one, low, high, difference, ends in zip(
            blank,
            below,
            above,
            units.difference(apart, reference),
            units.interval(below, above, reference),
            strict=True,
        )
    ]
    found[control] = blank[control]
    return found


def _seeds_to_decide(fit: Fit, members: Sequence[int]) -> int | None:
    """Return the seeds at which c SE is the gap between the best arm and the member hardest to tell from
    it, with the variance at its upper quantile; None as in `BestSet.seeds_to_decide`.
    """
    from scipy.special import chdtri

    best = max(members, key=lambda arm: fit.means[arm])
    rivals = [arm for arm in members if arm != best]
    gaps = fit.means[best] - fit.means
    if not rivals or not fit.errors[best, rivals].all():
        return None
    rival = min(rivals, key=lambda arm: gaps[arm] / fit.errors[best, arm])
    df = min(fit.df[best], fit.df[rival])
    variance = (fit.variances[best] + fit.variances[rival]) * df / chdtri(df, _UPPER)
    shares = _shares(fit.variances, rival)

    def separation(seeds: int) -> float:
        later = min(fit.prior_df + seeds - 1, (len(fit.means) - 1) * (seeds - 1))
        half_width = _quantile(shares, later, two_sided=False) * np.sqrt(variance / seeds)
        return float(gaps[rival] / half_width)

    needed = bisect_left(range(MOST_SEEDS + 1), 1.0, lo=fit.seeds + 1, key=separation)
    return needed if needed <= MOST_SEEDS else None


def critical_value(fit: Fit, arm: int, *, two_sided: bool = False) -> float:
    """Return the c that all comparisons with `arm` together stay below with probability 1 - LEVEL.

    An arm that is out at Bonferroni's c is out at the exact one: it is given Bonferroni's.

    They correlate as lambda_j lambda_l where no cell is missing. Where some are, they nearly do, with the
    u_j for which u_i + u_j is closest to SE_ij^2 (after Hsu 1992), known here to a common factor.
    """
    from scipy.special import stdtrit

    squares, arms = fit.errors**2, len(fit.means)
    if not squares.any():
        return 0.0
    bonferroni = float(stdtrit(fit.df[arm], 1 - LEVEL / (arms - 1)))
    if not two_sided and (fit.means - fit.means[arm] > bonferroni * fit.errors[arm]).any():
        return bonferroni
    own = squares.sum(1) - (squares.sum() / (2 * (arms - 1)) if arms > 2 else 0)
    return _quantile(_shares(own, arm), float(fit.df[arm]), two_sided)


def _shares(variances: "Array", arm: int) -> tuple[float, ...]:
    """Return lambda_j = sqrt(v_i / (v_i + v_j)) of all others j, for the arm i, rounded and ascending, so
    that arms which are alike have the same.
    """
    variances = np.maximum(variances, _LEAST_SHARE * variances.max())
    shares = np.sqrt(variances[arm] / (variances[arm] + np.delete(variances, arm)))
    return tuple(np.sort(np.clip(np.round(shares, 4), 0.001, 0.999)).tolist())


@lru_cache(maxsize=1_024)
def _quantile(shares: tuple[float, ...], df: float, two_sided: bool) -> float:
    """Return the c that T_j = (lambda_j z + sqrt(1 - lambda_j^2) e_j) / s stay below with probability
    1 - LEVEL, all together, for independent normal z and e_j and s^2 of chi^2(df) / df; two-sided, the c
    that |T_j| stay below.

    Given u = c s, their probability is integrated over z by the trapezoidal rule, which for a normal
    density is as good as exact, and better than Gauss and Hermite where the factor of z is steep. It is
    smooth in u, so that a polynomial stands for it; s is integrated over its probability.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtri, ndtr, stdtrit

    level = LEVEL / 2 if two_sided else LEVEL
    single, bonferroni = stdtrit(df, 1 - level), stdtrit(df, 1 - level / len(shares))
    if len(shares) == 1:
        return float(single)
    rules = _rules()
    z = np.linspace(-5, 5, 27)
    density = np.exp(-(z**2) / 2)
    own = np.sqrt(1 - np.square(shares))[:, None, None]
    common = np.multiply.outer(shares, z)[:, None] / own
    limits = rules.points[:, None] / own
    inside = ndtr(limits - common)
    if two_sided:
        inside -= ndtr(-limits - common)
    chances = rules.polynomial @ inside.prod(0) @ density / density.sum()
    s = np.sqrt(chdtri(df, 1 - rules.probabilities) / df)
    return float(
        brentq(
            lambda c: rules.weights @ np.interp(c * s, rules.u, chances) - (1 - LEVEL),
            0.9 * single,
            1.05 * bonferroni,
            xtol=1e-4,
        )
    )


class _Rules(NamedTuple):
    """Points of the quadrature."""

    points: "Array"
    """Values of u that determine a polynomial on [0, 6]: beyond, chance is out."""
    u: "Array"
    """Values of u, close to each other."""
    polynomial: "Array"
    """Matrix from the values of a polynomial at `points` to those at `u`."""
    probabilities: "Array"
    """Points of Gauss and Legendre in [0, 1]."""
    weights: "Array"


@cache
def _rules() -> _Rules:
    """Compute the points, which takes as long as a quantile."""
    degree, x = 26, np.linspace(-1, 1, 400)
    points = np.polynomial.chebyshev.chebpts1(degree + 1)
    vander = np.polynomial.chebyshev.chebvander
    nodes, weights = np.polynomial.legendre.leggauss(20)
    matrix = vander(x, degree) @ np.linalg.inv(vander(points, degree))
    return _Rules(3 * (points + 1), 3 * (x + 1), matrix, (1 + nodes) / 2, weights / 2)
