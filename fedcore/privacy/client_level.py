"""Client-level differential privacy on a trusted server: DP-FedAvg, with fixed or adaptive clipping."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedcore.assurance import Assurance
from fedcore.block import Block
from fedcore.core import Aggregate, Aggregator, Cohort, Vectors, clip_factors
from fedcore.errors import SpecificationError
from fedcore.lazy import random, torch
from fedcore.privacy.accounting import GaussianRelease
from fedcore.privacy.base import CHANGES, DIRECTION, POINTER, Neighbours, Privacy, PrivateRun, Release
from fedcore.systems.participation import Bernoulli, Full, Uniform

if TYPE_CHECKING:
    from torch import Tensor

NOISE = "privacy noise"
COUNT_NOISE = "noise of the count"
"""Purposes of randomness."""


class Clipped(NamedTuple):
    """Changes of a cohort, shortened."""

    deltas: Tensor
    """[M, D], zero for a change that is not finite."""
    norms: Tensor
    """[M] before they were shortened."""
    factors: Tensor
    """[M] min(1, C / |Delta_i|); zero for a change that is not finite."""

    def sum(self) -> Tensor:
        """sum_i min(1, C / |Delta_i|) Delta_i, [D]."""
        return self.factors @ self.deltas


def clip(deltas: Tensor, norm: Tensor | float) -> Clipped:
    """`deltas` [M, D], none longer than `norm`, whatever they are."""
    norms = deltas.norm(dim=1)
    finite = norms.isfinite()
    factors = clip_factors(norms, norm)
    return Clipped(
        torch.where(finite[:, None], deltas, 0.0), norms, torch.where(finite, factors, 0.0).to(deltas)
    )


def standard_normal(like: Tensor, seed: int, purpose: str, round: int, client: int = 0) -> Tensor:
    """Standard normal numbers of a keyed stream, of the shape and type of `like`."""
    drawn = random.generator(seed, purpose, round, client).standard_normal(tuple(like.shape))
    return torch.as_tensor(drawn).to(like)


class ClippingUpdate(NamedTuple):
    """The update of the clipping norm after a round."""

    quantile: float
    lr: float
    count_noise: float
    expected: float
    """m, the expected size of a cohort."""

    def next(self, norm: Tensor, seen: Clipped, noise: Tensor) -> Tensor:
        """C exp(-lr (b - quantile)), where b is the noisy share of changes that are not clipped."""
        inside = (seen.norms <= norm).to(norm) - 0.5
        share = (inside.sum() + self.count_noise * noise) / self.expected + 0.5
        return norm * torch.exp(-self.lr * (share - self.quantile))


@dataclass(frozen=True)
class PrivateMean(Aggregator):
    """The sum of clipped changes over the expected number of clients, with Gaussian noise."""

    moves_alone = True  # An empty cohort must not show.

    clip_norm: float
    noise_multiplier: float
    """Noise multiplier of the sum of changes; see `ClientLevelPrivacy`."""
    expected: float
    clipping: ClippingUpdate | None = None
    """Update of the clipping norm, if clipping is adaptive."""
    seed: int = 0
    round: int = 0

    def of_round(self, seed: int, round: int) -> PrivateMean:
        return replace(self, seed=seed, round=round)

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def start(self, x: Tensor) -> Vectors:
        if self.clipping is None:
            return {}
        return {"clip_norm": torch.tensor(self.clip_norm, dtype=torch.float64, device=x.device)}

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        norm = aggregator_state.get("clip_norm", self.clip_norm)
        clipped = clip(seen, norm)
        noise = norm * self.noise(seen.new_empty(seen.shape[1]))
        direction = (clipped.sum() + noise.to(seen)) / self.expected
        state = aggregator_state
        if self.clipping is not None:
            drawn = standard_normal(state["clip_norm"], self.seed, COUNT_NOISE, self.round)
            state = {"clip_norm": self.clipping.next(state["clip_norm"], clipped, drawn)}
        return Aggregate(direction, clipped.factors / self.expected, state)

    def noise(self, like: Tensor) -> Tensor:
        """Noise [D] of the round for C = 1, of the shape and type of `like`."""
        return self.noise_multiplier * standard_normal(like, self.seed, NOISE, self.round)


class AdaptiveClipping(Block):
    """C follows a quantile of the norms of the clients' changes.

        b = (1/m) (sum_i (1[|Delta_i| <= C] - 1/2) + N(0, count_noise^2)) + 1/2
        C <- C exp(-lr (b - quantile))

    after each round, where m is the expected number of clients.
    """

    quantile: Annotated[float, Field(ge=0, le=1)] = 0.5
    """gamma: the share of changes that should not be clipped."""
    lr: Annotated[float, Field(gt=0, le=100)] = 0.2
    """eta_C, the step size."""
    count_noise: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """sigma_b, the standard deviation of the noise of the count of clients (default: m / 20, as in
    the paper, or z if that is more, so that small cohorts have some).
    """


class ClientLevelPrivacy(Privacy):
    """DP-FedAvg: the server clips each client's change to length C and adds noise to their sum.

        x <- x + (1/m) (sum_i Delta_i min(1, C / |Delta_i|) + N(0, z^2 C^2 I))

    with the expected number m of clients, which is fixed: q N of `bernoulli`, K of `uniform`, N of
    `full`. A server optimiser may follow. Every client has the weight 1 (the paper: min(n_k / w, 1)).

    With adaptive clipping the count of short changes is released, too. The noise of the changes is
    then z_Delta C, so that both together cost what z costs:

        z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)

    Neighbours differ by adding or removing a client; under `uniform` by replacing one, which changes
    the sum by up to 2 C.
    """

    source = (
        "McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018 (DP-FedAvg);"
        " adaptive clipping: Andrew et al., Differentially Private Learning with Adaptive Clipping,"
        " NeurIPS 2021"
    )
    example = {"noise_multiplier": 0.5, "clip_norm": 0.5, "adaptive_clipping": {"quantile": 0.5}}
    requires = CHANGES | {Assurance.ALL_ARRIVE, Assurance.COHORT_SIZE}

    kind: Literal["client_level"] = "client_level"
    adaptive_clipping: AdaptiveClipping | None = None
    """Adapts C from `clip_norm` on (default: C is fixed)."""

    @model_validator(mode="after")
    def _count_leaves_something(self) -> Self:
        clipping, z = self.adaptive_clipping, self.noise_multiplier
        if clipping and clipping.count_noise is not None and z is not None and 2 * clipping.count_noise <= z:
            raise ValueError(
                f"`adaptive_clipping.count_noise` must be above half of the noise multiplier {z:g}"
            )
        return self

    def check(self, run: PrivateRun) -> None:
        check_sampling(self, run)

    def releases(self, noise: float, run: PrivateRun, rounds: int) -> tuple[GaussianRelease, int]:
        return release_of(noise, run), rounds

    def aggregator(self, within: Aggregator, run: PrivateRun) -> Aggregator:
        z, expected = self.noise(run), run.expected_clients
        if self.adaptive_clipping is None:
            return PrivateMean(self.clip_norm, z, expected)
        given, count_noise = self.adaptive_clipping, self._count_noise(run)
        clipping = ClippingUpdate(given.quantile, given.lr, count_noise, expected)
        return PrivateMean(self.clip_norm, noise_of_changes(z, count_noise), expected, clipping)

    def neighbours(self, run: PrivateRun) -> Neighbours:
        return "client replaced" if isinstance(run.participation, Uniform) else "client added"

    def released(self, run: PrivateRun, state: Vectors) -> dict[str, Release]:
        z, expected, given = self.noise(run), run.expected_clients, self.adaptive_clipping
        changed = 2 if self.neighbours(run) == "client replaced" else 1
        if given is None:
            norm = self.clip_norm / expected
            return {DIRECTION: Release(changed * norm, z * norm)}
        norm, count_noise = float(state["clip_norm"]) / expected, self._count_noise(run)
        step = given.lr / expected
        return {
            DIRECTION: Release(changed * norm, noise_of_changes(z, count_noise) * norm),
            "clip_norm": Release(changed * step / 2, count_noise * step, logarithm=True),
        }

    def _count_noise(self, run: PrivateRun) -> float:
        assert self.adaptive_clipping is not None
        z, given = self.noise(run), self.adaptive_clipping.count_noise
        count_noise = max(run.expected_clients / 20, z) if given is None else given
        if 2 * count_noise <= z:
            raise SpecificationError(
                f"{POINTER}/adaptive_clipping/count_noise",
                f"must be above half of the noise multiplier {z:g}, or omitted",
            )
        return count_noise


def noise_of_changes(z: float, count_noise: float) -> float:
    """z_Delta of Andrew et al.: (z^-2 - (2 sigma_b)^-2)^(-1/2); 0 for z = 0."""
    return float((z**-2 - (2 * count_noise) ** -2) ** -0.5) if z else 0.0


def release_of(noise: float, run: PrivateRun) -> GaussianRelease:
    """A round's release with noise multiplier `noise` under a scheme that `check_sampling` accepts."""
    if isinstance(run.participation, Uniform):
        return GaussianRelease(noise / 2, run.expected_clients, run.clients, fixed_size=True)
    return GaussianRelease(noise, run.expected_clients, run.clients)


def check_sampling(privacy: Privacy, run: PrivateRun) -> None:
    """Raise SpecificationError unless the accountant knows what the run's sampling hides."""
    scheme = run.participation
    if type(scheme) not in (Full, Uniform, Bernoulli):
        raise SpecificationError(
            "/participation",
            f"no accountant covers the sampling of {scheme.kind}: use `bernoulli`, `uniform` or `full`",
        )
    if isinstance(scheme, Bernoulli) and not isinstance(scheme.probability, float):
        raise SpecificationError(
            "/participation/probability", "privacy is accounted for one probability of all clients"
        )
    if isinstance(scheme, Uniform) and privacy.accountant == "pld":
        raise SpecificationError(
            f"{POINTER}/accountant",
            "there is no privacy loss distribution for samples of fixed size: use `rdp`, or"
            " `participation: {kind: bernoulli}`",
        )
