"""The interface of participation schemes: clients are drawn, and a scheme may then select among
them by values that it keeps or asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from fedcore.assurance import Assurance, Assurances
from fedcore.block import Block
from fedcore.lazy import np
from fedcore.systems.availability import Reachable

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

Weighting = Literal["samples", "uniform", "unbiased", "original"]
Question = Literal["loss", "gradient"]
Observed = Literal["loss", "update_norm"]
SelectionState = Mapping[str, "Floats"]


class Timing(NamedTuple):
    """Estimated simulated seconds [m] that a round takes clients, if they miss no step."""

    download: Floats
    compute: Floats
    upload: Floats

    @property
    def total(self) -> Floats:
        """[m] the sum."""
        return self.download + self.compute + self.upload


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """Facts that the server knows before a round."""

    round: int
    """Counted from 1."""
    share: Floats
    """[N] p_i."""
    samples: Ids
    """[N] n_i."""
    timing: Callable[[Ids], Timing] | None = None
    """Timing of given clients [m]; None without `systems.devices`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Reports of the M clients that reached the server in a round."""

    clients: Ids
    """[M] ascending."""
    losses: Floats | None = None
    """[M] F_i at the model that the round began with, if the scheme observes `loss`."""
    update_norms: Floats | None = None
    """[M] |Delta_i| as the server received it, if the scheme observes `update_norm`."""
    seconds: Floats | None = None
    """[M] simulated seconds until the server had heard from each; None without `systems.devices`."""


class Selection(NamedTuple):
    """The cohort of a round."""

    clients: Ids
    """[M] distinct clients."""
    expected_draws: Floats | None = None
    """[M] the probability with which each was selected, if the scheme knows it: weighting
    `unbiased` divides by it. None: `Participation.expected_draws`.
    """
    chance_of_others: Floats | None = None
    """[M] the probability that a cohort in which each is has another client, which `unbiased` needs
    where stragglers are dropped. None: `Participation.chance_to_keep_any`.
    """


class Participation(Block):
    """Selection of the clients of each round, and their weights.

    `draw` draws clients. A scheme that `selects` takes these as candidates: it may ask each for a
    value at the current model, keep a state between rounds, and `select` the cohort.
    """

    source: ClassVar[str | None] = None
    """The publication."""
    everyone: ClassVar[bool] = False
    """True if all clients take part in every round."""
    assures: ClassVar[Assurances] = frozenset(
        {
            Assurance.CHANGE_ALONE,
            Assurance.NOISE_FIRST,
            Assurance.NOISY_GRADIENTS,
        }
    )
    """Statements about privacy; a class that overrides a method declares its own. Values that `asks` and
    `observes` announce need not be taken out.
    """
    own_weighting: ClassVar[Weighting] = "samples"
    """Weighting, unless the specification or the algorithm says otherwise."""
    draws_by_share: ClassVar[bool] = False
    """True if clients are drawn with probability p_i, so that weights p_i would count it twice."""
    chooses_by_loss: ClassVar[bool] = False
    """True if the clients drawn are candidates: each receives the model and returns its loss, and
    `choose` selects the cohort.
    """

    if TYPE_CHECKING:
        kind: str
    weighting: Weighting | None = None
    """`samples`: n_i renormalised over the cohort; `uniform`: equal; `unbiased`: divided by the
    expected number of times client i is drawn, so that the weighted update is unbiased for
    sum_i p_i Delta_i; `original`: p_i without renormalisation, as if all other clients had stayed
    at x, x <- sum_S p_i y_i + sum_not_S p_i x (the baseline scheme of Li et al.). Default: that of
    the algorithm, else that of the scheme.
    """

    @property
    def scales_model(self) -> bool:
        """True if x is scaled by the sum of the weights, because models are averaged."""
        return False

    @property
    def transforms_objective(self) -> bool:
        """True if client i trains on p_i N F_i."""
        return False

    @property
    def loses_cohorts(self) -> bool | None:
        """True if the probability that all clients of a cohort are dropped as stragglers has no
        closed form in general; None if `chance_to_keep_any` does not say.
        """
        return None

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        """The clients drawn in a round, counted from 1, with repetitions, given p [N]."""
        raise NotImplementedError

    def choose(self, candidates: Ids, losses: Floats) -> Ids:
        """The cohort: some of the distinct `candidates` [m], ascending, given their losses F_i(x) [m] over
        all their samples.

        Called if `chooses_by_loss`.
        """
        return candidates

    def selects(self) -> bool:
        """True if the clients drawn are candidates, among which `select` chooses."""
        return self.chooses_by_loss

    def asks(self) -> Question | None:
        """Value that each candidate computes at the model x, which it receives for it: its `loss`
        F_i(x), or its full `gradient`; None if candidates are not asked.
        """
        return "loss" if self.chooses_by_loss else None

    def observes(self) -> frozenset[Observed]:
        """Values that clients which have taken part report for `update_state`: `loss`, one number that
        each computes over all its samples when it receives the model; `update_norm`, which the
        server computes.
        """
        return frozenset()

    def needs_devices(self) -> bool:
        """True if it requires `systems.devices`."""
        return False

    def start_state(self, clients: int) -> SelectionState:
        """State before the first round, for N = `clients`: arrays of float64 by name."""
        return {}

    def select(
        self,
        candidates: Ids,
        answers: Floats | None,
        state: SelectionState,
        facts: RoundFacts,
        rng: Generator,
    ) -> Selection:
        """The cohort, some of the distinct `candidates` [m], ascending.

        `answers` are what the scheme asks for: losses [m], or distances [m, m] between gradients.
        `rng` is the stream of the round for selection. Called if the scheme `selects`.
        """
        assert answers is not None
        return Selection(self.choose(candidates, answers))

    def update_state(self, state: SelectionState, outcome: Outcome, facts: RoundFacts) -> SelectionState:
        """The state after a round, in arrays of its own; `facts` are the facts that the round began
        with.
        """
        return state

    def expected_draws(self, share: Floats, clients: Ids) -> Floats:
        """[M] how often each of `clients` [M] is drawn in a round, in expectation."""
        return np.ones(len(clients))

    def chance_to_keep_any(self, share: Floats, clients: Ids, least: int) -> Floats | float:
        """[M] the chance that a cohort in which a client is has at least `least` clients, so that
        stragglers do not take all of them; 1 if its size is fixed, which a scheme has to say.

        The number of clients is 1 + Binomial(N - 1, q) for one probability q. For m = 2 it is the
        chance that another client is drawn: 1 - prod_(j != i) (1 - q_j), or 1 - p_i^(K - 1) of K
        draws by share.
        """
        return 1.0

    def unknown_probability(self) -> str | None:
        """Reason why inclusion probabilities are not known; None if they are."""
        return None

    def listed(self, rounds: int) -> list[set[int]] | None:
        """The clients of each round; None if they are drawn."""
        return None

    def check(self, clients: int, rounds: int) -> None:
        """Raise SpecificationError if the block does not fit N = `clients` and `rounds`."""


def normalise_weights(weight: Floats) -> Floats:
    """`weight` [M], made to sum to 1."""
    total = float(weight.sum())
    return weight / total
