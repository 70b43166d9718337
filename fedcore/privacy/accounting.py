"""Epsilon of repeated Gaussian mechanisms, by the library dp-accounting.

The library is imported where an epsilon is first asked for, since it loads NumPy and SciPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedcore.lazy import dp_accounting, pld, rdp

if TYPE_CHECKING:
    from numpy.typing import NDArray

Accountant = Literal["rdp", "pld"]
ORDERS = (*range(2, 25), 28, 32, 40, 48, 64, 96, 128)
"""Orders of Renyi divergences. Whole ones have a closed form under Poisson sampling, the series of
the others does not always converge; any choice gives an upper bound.
"""
INTERVAL = 1e-3
"""Width of the intervals of a privacy loss distribution; losses are rounded up. Tenths of it take ten
times as long and lower epsilon by less than 0.1 %.
"""
DIGITS = 1000
"""A solved noise multiplier is a whole number of thousandths, so that it does not depend on the last
bits of a library.
"""


class GaussianRelease(NamedTuple):
    """A sum of bounded vectors over a sample, with Gaussian noise."""

    ratio: float
    """Standard deviation of the noise over the sensitivity of the sum."""
    drawn: float = 1.0
    """Expected size of the sample."""
    population: int = 1
    """Size of the set that it is drawn from; `drawn` = `population`: no sampling."""
    fixed_size: bool = False
    """True if exactly `drawn` are drawn, without replacement, and neighbours differ by replacing one;
    else each is drawn independently, and neighbours differ by adding or removing one.
    """

    @property
    def probability(self) -> float:
        """q, the probability of each to be drawn."""
        return self.drawn / self.population


def epsilon(release: GaussianRelease, count: int, delta: float, accountant: Accountant) -> float:
    """The epsilon for `delta` of `count` releases, each of which may depend on those before.

    `rdp` composes Renyi divergences (Mironov, 2017): of Poisson samples as in Mironov, Talwar and
    Zhang (2019), of samples of fixed size as in Wang, Balle and Kasiviswanathan (2019), Theorem 27.
    `pld` composes distributions of the privacy loss (Koskela et al., 2020), which is tighter;
    without sampling it is the closed form of Balle and Wang (2018), the analytic Gaussian mechanism.
    """
    if count == 0:
        return 0.0
    if release.ratio == 0:
        return inf
    if accountant == "rdp":
        return float(rdp.compute_epsilon(ORDERS, count * _divergences(release), delta)[0])
    if release.probability == 1:
        return float(dp_accounting.get_epsilon_gaussian(release.ratio / sqrt(count), delta))
    return float(_loss(release).self_compose(count).get_epsilon_for_delta(delta))


def delta_of(release: GaussianRelease, count: int, epsilons: list[float]) -> list[float]:
    """The least delta known for each of `epsilons`, of `count` releases: by privacy loss distributions
    where there are such, else by Renyi divergences.
    """
    if release.fixed_size and release.probability < 1:
        spent = _accountant(release, "rdp").compose(_event(release), count)
        return [float(spent.get_delta(each)) for each in epsilons]
    if release.probability == 1:
        # One release of all: the ratio falls with the square root of their number.
        single = _loss(GaussianRelease(release.ratio / sqrt(count)))
        return [float(each) for each in single.get_delta_for_epsilon(epsilons)]
    return [float(each) for each in _loss(release).self_compose(count).get_delta_for_epsilon(epsilons)]


def solve_noise(
    releases: Callable[[float], tuple[GaussianRelease, int]],
    target: float,
    delta: float,
    accountant: Accountant,
) -> float:
    """The least noise multiplier z, in thousandths, with epsilon at most `target`.

    `releases(z)` are the release of a round and its count. Raises ValueError if z = 0.1 is
    enough.
    """

    def solved(accountant: Accountant, bracket: Any) -> float:
        def event(z: float) -> Any:
            release, count = releases(z)
            return dp_accounting.SelfComposedDpEvent(_event(release), count)

        return float(
            dp_accounting.calibrate_dp_mechanism(
                lambda: _accountant(releases(1.0)[0], accountant), event, target, delta, bracket, tol=5e-4
            )
        )

    if epsilon(*releases(0.1), delta, "rdp") <= target:
        raise ValueError("is reached with a noise multiplier below 0.1")
    z = solved("rdp", dp_accounting.LowerEndpointAndGuess(0.1, 1.0))
    if accountant == "pld":
        # Distributions of little noise are long, so the search begins where that of the bound ended.
        z = solved("pld", dp_accounting.ExplicitBracketInterval(z / 2, z))
    return ceil(z * DIGITS) / DIGITS


@lru_cache(maxsize=256)
def _divergences(release: GaussianRelease) -> NDArray[Any]:
    found: NDArray[Any] = _accountant(release, "rdp").compose(_event(release)).rdp
    return found


@lru_cache(maxsize=8)
def _loss(release: GaussianRelease) -> Any:
    return pld.privacy_loss_distribution.from_gaussian_mechanism(
        release.ratio, sampling_prob=release.probability, value_discretization_interval=INTERVAL
    )


def _event(release: GaussianRelease) -> Any:
    gaussian = dp_accounting.GaussianDpEvent(release.ratio)
    if release.probability == 1:
        return gaussian
    if release.fixed_size:
        return dp_accounting.SampledWithoutReplacementDpEvent(
            release.population, int(release.drawn), gaussian
        )
    return dp_accounting.PoissonSampledDpEvent(release.probability, gaussian)


def _accountant(release: GaussianRelease, accountant: Accountant) -> Any:
    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if release.fixed_size else relations.ADD_OR_REMOVE_ONE
    if accountant == "rdp":
        return rdp.RdpAccountant(ORDERS, relation)
    return pld.PLDAccountant(relation, INTERVAL)
