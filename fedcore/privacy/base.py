"""Base class of `privacy`: the mechanism, its noise, and what it costs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedcore.assurance import EVERYTHING, Assurance, Assurances
from fedcore.block import Block, PositiveRate
from fedcore.core import Aggregator, LocalRandomiser, Vectors
from fedcore.errors import SpecificationError
from fedcore.privacy.accounting import Accountant, GaussianRelease, epsilon, solve_noise
from fedcore.systems.participation import Bernoulli, Participation
from fedcore.systems.participation.sampling import Sampled

POINTER = "/privacy"
Neighbours = Literal["client added", "client replaced", "client zeroed", "data replaced", "sample zeroed"]
"""Data sets that must be hard to tell apart: a client is there or not; has other data and another size;
sends a change or zero; has other data of the same size; a sample of a client counts or is zero.
"""
DIRECTION, MESSAGE, GRADIENT = "direction", "message", "gradient"
"""Names of released values: the direction of the aggregator; the change that a client sends; the sum of
the gradients of a mini-batch, the mean times `local.batch_size`.
"""


class PrivateRun(NamedTuple):
    """The facts about a run that its privacy depends on."""

    participation: Participation
    clients: int
    """N."""
    rounds: int
    """T."""
    epochs: int = 1
    """Passes of a client over its data in a round."""

    @property
    def expected_clients(self) -> float:
        """m, the expected number of clients of a round; all, under a scheme that says nothing of it."""
        match self.participation:
            case Bernoulli(probability=float(probability)):
                return self.clients * probability
            case Bernoulli(probability=tuple(each)):
                return sum(each)
            case Sampled() as scheme:
                return float(scheme.cohort_size(self.clients))
        return float(self.clients)


CHANGES: Assurances = frozenset(
    {Assurance.CHANGE_ALONE, Assurance.OWN_DATA, Assurance.AS_CLIPPED, Assurance.NOISE_FIRST}
)
"""Statements that a mechanism requires whose server clips changes and adds noise to their sum."""


class Release(NamedTuple):
    """A number or a vector that leaves a round with Gaussian noise."""

    sensitivity: float
    """Largest Euclidean distance between its values before noise on neighbouring data."""
    deviation: float
    """Standard deviation of the noise in every coordinate."""
    logarithm: bool = False
    """True if `sensitivity` and `deviation` refer to the value's logarithm."""


SAMPLES_TOGETHER = (
    "samples have no gradients of their own in networks with dropout or batch norm: use another model, or"
    " `privacy: client_level`"
)
"""The reason why networks with dropout or batch norm have no clipped gradients of samples."""


class Privacy(Block):
    """A mechanism of differential privacy and its parameters.

    Noise is drawn from keyed streams. It is for research: who knows the seed can subtract it.
    """

    source: ClassVar[str | None] = None
    """The publication."""
    replaces_aggregator: ClassVar[bool] = True
    """True if it is an aggregation of its own."""
    requires: ClassVar[Assurances] = EVERYTHING
    """Statements that must hold of the other parts of a run for what the accountant counts, with
    the mechanism's neighbours: each part declares in `assures` the statements that hold of it.
    """
    clips_samples: ClassVar[bool] = False
    """True if clients clip the gradients of samples and add noise to them, so that whatever they send
    is private.
    """

    if TYPE_CHECKING:
        kind: str = ""
    clip_norm: PositiveRate = 1.0
    """C, the largest Euclidean norm that counts in full, of a client's change or of a sample's gradient."""
    noise_multiplier: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    """z, the standard deviation of the noise over C."""
    target_epsilon: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    """The epsilon after the last round, from which z is solved; alternative to `noise_multiplier`."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of (epsilon, delta); it should be well below 1 / N."""
    accountant: Accountant = "rdp"
    """`rdp` composes Renyi divergences; `pld` composes privacy loss distributions, which gives a
    smaller epsilon for the same noise and takes longer.
    """

    @model_validator(mode="after")
    def _one_noise(self) -> Self:
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("give either `noise_multiplier` or `target_epsilon`")
        return self

    def check(self, run: PrivateRun) -> None:
        """Raise SpecificationError if the epsilon of the run is not known."""

    def releases(self, noise: float, run: PrivateRun, rounds: int) -> tuple[GaussianRelease, int]:
        """The mechanism, and how many times it is applied, in the first `rounds` rounds of a run with
        noise multiplier z = `noise`.
        """
        raise NotImplementedError

    def aggregator(self, within: Aggregator, run: PrivateRun) -> Aggregator:
        """The aggregator of a run, where `within` is the one without privacy."""
        raise NotImplementedError

    def randomiser(self, run: PrivateRun) -> LocalRandomiser | None:
        """The noise that clients of a run add to their changes; None if they add none."""
        return None

    def neighbours(self, run: PrivateRun) -> Neighbours:
        """Data sets that the epsilon of a run is about."""
        if self.clips_samples:
            return "sample zeroed"
        return "client added" if self.replaces_aggregator else "data replaced"

    def released(self, run: PrivateRun, state: Vectors) -> dict[str, Release]:
        """Releases of a round, for audits: DIRECTION, MESSAGE, GRADIENT, or names of the aggregator's
        state, which is `state` before the round.

        Whatever else the adversary sees must be the same on neighbouring data. It sees models, the
        server's state and checkpoints; of mechanisms that do not replace the aggregator also the
        messages of clients.
        """
        z = self.noise(run)
        if self.clips_samples:
            return {GRADIENT: Release(self.clip_norm, z * self.clip_norm)}
        if not self.replaces_aggregator:
            return {MESSAGE: Release(2 * self.clip_norm, z * self.clip_norm)}
        norm = self.clip_norm / run.expected_clients
        return {DIRECTION: Release(norm, z * norm)}

    def noise_of_rounds(self, rounds: int) -> list[list[float]]:
        """[rounds, K] how the noise of each round is made of K independent ones; by default each has its
        own.
        """
        return [[float(other == round) for other in range(rounds)] for round in range(rounds)]

    def noise(self, run: PrivateRun) -> float:
        """z of a run; solved, if `target_epsilon` is given.

        Raises SpecificationError if a z below 0.1 has that epsilon.
        """
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        try:
            return _solved(self, run)
        except ValueError as error:
            raise SpecificationError(f"{POINTER}/target_epsilon", f"{self.target_epsilon} {error}") from error

    def epsilon(self, run: PrivateRun, rounds: int) -> float:
        """epsilon after the first `rounds` rounds of a run; infinite without noise."""
        release, count = self.releases(self.noise(run), run, rounds)
        return epsilon(release, count, self.delta, self.accountant)


@lru_cache(maxsize=256)
def _solved(privacy: Privacy, run: PrivateRun) -> float:
    assert privacy.target_epsilon is not None
    return solve_noise(
        lambda z: privacy.releases(z, run, run.rounds),
        privacy.target_epsilon,
        privacy.delta,
        privacy.accountant,
    )
