"""Selection of clients by values: their losses, updates, gradients or speed.

Each scheme draws candidates and selects the cohort among them. What it remembers of clients is
state of the server, stored in checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.block import ClientCount
from fedcore.errors import SpecificationError
from fedcore.lazy import np
from fedcore.systems.availability import Reachable
from fedcore.systems.participation.base import (
    Observed,
    Outcome,
    Participation,
    Question,
    RoundFacts,
    Selection,
    SelectionState,
    Weighting,
)
from fedcore.systems.participation.sampling import chance_of_others, draw_by_share, draw_uniformly

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

Fixed = Annotated[float, Field(ge=0, le=1)]


class Selecting(Participation):
    """A scheme that selects K of its candidates; by default as many as its field `candidates` says,
    drawn uniformly, or all that can be reached.
    """

    own_weighting: ClassVar[Weighting] = "uniform"

    clients_per_round: ClientCount
    """K, the clients selected in each round, or all candidates if there are fewer."""

    def selects(self) -> bool:
        return True

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        among, candidates = None if reachable is None else reachable.all(), getattr(self, "candidates", None)
        if candidates is not None:
            return draw_uniformly(len(share), among, candidates, rng)
        return np.arange(len(share)) if among is None else among

    def unknown_probability(self) -> str | None:
        return f"with {self.kind} a client's probability depends on the training; use `uniform` or `samples`"

    def check(self, clients: int, rounds: int) -> None:
        candidates = getattr(self, "candidates", None)
        if self.clients_per_round > clients:
            raise SpecificationError(
                "/participation/clients_per_round",
                f"{self.clients_per_round} of {clients} clients cannot be selected; use at most {clients}",
            )
        if candidates is not None and not self.clients_per_round <= candidates <= clients:
            raise SpecificationError(
                "/participation/candidates",
                f"must be between K = {self.clients_per_round} and N = {clients}, not {candidates}",
            )


class PowerOfChoice(Selecting):
    """Select the K of d candidates with the largest losses F_i(x), each weighing 1/K; candidates
    are drawn without replacement with probability p_i.

    `losses: exact` is pow-d: candidates receive x and return F_i(x). `losses: stored` is rpow-d:
    the server compares the losses that clients reported when they last took part, infinite for
    clients that never have, and candidates are sent nothing. Departures: a reported loss is F_i
    over all samples at the model that the client received, in place of its mean over the local
    steps; equal losses go to the lowest client, in place of a random one. Batches for estimates
    (cpow-d) are left out. d = K is `by_share`.
    """

    source = (
        "Cho, Wang and Joshi, Towards Understanding Biased Client Selection in Federated Learning, AISTATS"
        " 2022 (Power-of-Choice; extended version: arXiv:2010.01243)"
    )
    draws_by_share = True
    example = {"clients_per_round": 2, "candidates": 4}
    assures = Participation.assures

    kind: Literal["power_of_choice"] = "power_of_choice"
    candidates: ClientCount
    """d, the number of candidates, among which the clients with the largest losses are selected."""
    losses: Literal["exact", "stored"] = "exact"
    """Losses that are compared: `exact` at the current model, or `stored` from last time."""

    def asks(self) -> Question | None:
        return "loss" if self.losses == "exact" else None

    def observes(self) -> frozenset[Observed]:
        return frozenset() if self.losses == "exact" else frozenset({"loss"})

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        return draw_by_share(share, None if reachable is None else reachable.all(), self.candidates, rng)

    def start_state(self, clients: int) -> SelectionState:
        return {} if self.losses == "exact" else {"loss": np.full(clients, np.inf)}

    def select(
        self,
        candidates: Ids,
        answers: Floats | None,
        state: SelectionState,
        facts: RoundFacts,
        rng: Generator,
    ) -> Selection:
        losses = state["loss"][candidates] if answers is None else answers
        return Selection(candidates[np.argsort(-losses, kind="stable")[: self.clients_per_round]])

    def update_state(self, state: SelectionState, outcome: Outcome, facts: RoundFacts) -> SelectionState:
        if not state:
            return state
        assert outcome.losses is not None
        return {"loss": _updated(state["loss"], outcome.clients, outcome.losses)}


class Importance(Selecting):
    """Every client independently with a probability q_i that grows with its loss or its update, and
    weights p_i / q_i, so that the weighted update is unbiased for sum_i p_i Delta_i.

        u_i = p_i |Delta_i|  (`by: update_norm`)    or    u_i = p_i F_i(x)  (`by: loss`)
        q_i = (1 - mix) o_i + mix K / N

    where o minimises the variance: with u_(1) <= ... <= u_(N),
    o_i = (K + l - N) u_i / (u_(1) + ... + u_(l)) for the l smallest and 1 for the others, l being
    the largest for which no o_i exceeds 1. The cohort has K clients on average and may be empty. Departures:
    |Delta_i| is that of the client's last participation, not of this round, for which every client
    would have to train; a client that has never taken part counts like the largest p_i |Delta_i|
    known. Losses below 0 count as 0. The mixture, which the paper does not have, keeps every q_i
    positive and the weights bounded. The authors' code approximates o by repeated scaling, so that
    the server sees sums only; here it is exact.
    """

    source = "Chen, Horvath and Richtarik, Optimal Client Sampling for Federated Learning, TMLR 2022"
    own_weighting = "unbiased"
    example = {"clients_per_round": 2, "by": "loss"}
    assures = Participation.assures

    kind: Literal["importance"] = "importance"
    by: Literal["update_norm", "loss"] = "update_norm"
    """`update_norm`: as stored by the server, without cost; `loss`: as every client that can be
    reached evaluates it at the current model, which it receives for it.
    """
    mix: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of uniform sampling in the probabilities; 1 is uniform sampling."""

    @property
    def loses_cohorts(self) -> bool:
        return True

    def unknown_probability(self) -> str | None:
        return None

    def asks(self) -> Question | None:
        return "loss" if self.by == "loss" else None

    def observes(self) -> frozenset[Observed]:
        return frozenset() if self.by == "loss" else frozenset({"update_norm"})

    def start_state(self, clients: int) -> SelectionState:
        return {} if self.by == "loss" else {"update_norm": np.full(clients, np.nan)}

    def probabilities(self, candidates: Ids, values: Floats, share: Floats) -> Floats:
        """q [m] of `candidates` [m] with F_i or |Delta_i| = `values` [m], NaN where it is unknown."""
        utility = share[candidates] * np.maximum(values, 0.0)
        known = np.isfinite(utility)
        utility = np.where(known, utility, utility[known].max(initial=0.0) or 1.0)
        optimal = optimal_probabilities(utility, self.clients_per_round)
        uniform = min(1.0, self.clients_per_round / max(len(candidates), 1))
        return (1 - self.mix) * optimal + self.mix * uniform

    def select(
        self,
        candidates: Ids,
        answers: Floats | None,
        state: SelectionState,
        facts: RoundFacts,
        rng: Generator,
    ) -> Selection:
        values = state["update_norm"][candidates] if answers is None else answers
        chance = self.probabilities(candidates, values, facts.share)
        chosen = rng.random(len(candidates)) < chance
        return Selection(candidates[chosen], chance[chosen], chance_of_others(chance)[chosen])

    def update_state(self, state: SelectionState, outcome: Outcome, facts: RoundFacts) -> SelectionState:
        if not state:
            return state
        assert outcome.update_norms is not None
        return {"update_norm": _updated(state["update_norm"], outcome.clients, outcome.update_norms)}


def optimal_probabilities(utility: Floats, count: int) -> Floats:
    """o [m] of `Importance` for u = `utility` [m], finite and >= 0, and K = `count`: they minimise
    sum_i u_i^2 / o_i under sum_i o_i = K and o_i <= 1. All alike if every u_i is 0.
    """
    size = len(utility)
    if count >= size:
        return np.ones(size)
    order = np.argsort(utility, kind="stable")
    sums = np.cumsum(utility[order])
    # One after the other, the largest are taken for certain, until no probability exceeds 1.
    least = np.arange(1, size + 1)
    fits = (count + least - size > 0) & ((count + least - size) * utility[order] <= sums)
    smallest = int(least[fits].max())
    below, total = order[:smallest], sums[smallest - 1]
    chance = np.ones(size)
    part = utility[below] / total if total else np.full(smallest, 1 / smallest)
    chance[below] = (count + smallest - size) * part
    return np.minimum(chance, 1.0)


class Oort(Selecting):
    """Clients with a large utility, which is statistical and, on the simulated clock, also of speed;
    a share epsilon of the cohort explores clients that have never taken part.

        U_i = n_i loss_i
        Util_i = (min(U_i, 95th percentile of U) + sqrt(0.1 log R / L_i)) (T / t_i)^[T < t_i] alpha

    R is the round, L_i the round of the client's last participation, t_i the seconds it took, T the
    preferred duration. (1 - epsilon) K clients are drawn with probability proportional to Util_i
    among clients with at least 0.95 of the ((1 - epsilon) K)-th largest; the others uniformly from
    clients that have never taken part. epsilon = max(epsilon_min, epsilon_start decay^(R - 1)). The
    pacer adds `pacer_seconds` to T whenever the sum of U over the cohorts of the last
    `pacer_rounds` is below that of as many before.

    Departures: loss_i is F_i over all samples at the model received in place of the root of the
    mean squared sample loss in training; exploration does not prefer fast clients, since the server
    does not know their speed; no client is excluded for having taken part often. Losses below 0
    count as 0. The authors' code differs from the paper: it scales the clipped U to [0, 1] before it
    adds the second term, T is a percentile of the clients' durations, and its pacer also lowers it.
    """

    source = "Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021"
    example = {"clients_per_round": 2, "epsilon_start": 0.5}
    assures = Participation.assures

    kind: Literal["oort"] = "oort"
    epsilon_start: Fixed = 0.9
    """Share of the first cohort that explores."""
    epsilon_decay: Annotated[float, Field(gt=0, le=1)] = 0.98
    """Factor of that share from round to round."""
    epsilon_min: Fixed = 0.2
    """Lower bound of that share; 1 explores as long as there are clients to explore."""
    preferred_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """T before the first round; requires `systems.devices` (default: speed does not count)."""
    alpha: Annotated[float, Field(ge=0, le=100)] = 2.0
    """Exponent of the penalty on clients slower than T."""
    pacer_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Seconds that the pacer adds to T (default: T is constant)."""
    pacer_rounds: Annotated[int, Field(ge=1, le=100_000)] = 20
    """Rounds between two decisions of the pacer."""

    def observes(self) -> frozenset[Observed]:
        return frozenset({"loss"})

    def needs_devices(self) -> bool:
        return self.preferred_seconds is not None

    def start_state(self, clients: int) -> SelectionState:
        unknown = np.full(clients, np.nan)
        return {
            "utility": unknown,
            "last_round": unknown,
            "seconds": unknown,
            "gains": np.zeros(2 * self.pacer_rounds),
            "preferred_seconds": np.array([self.preferred_seconds or np.inf]),
        }

    def epsilon(self, round: int) -> float:
        """Share of the cohort of `round`, counted from 1, that explores."""
        return max(self.epsilon_min, self.epsilon_start * self.epsilon_decay ** (round - 1))

    def utilities(self, clients: Ids, state: SelectionState, round: int) -> Floats:
        """Util [m] of `clients` [m] that have taken part."""
        known = state["utility"][np.isfinite(state["utility"])]
        utility: Floats = np.minimum(state["utility"][clients], np.quantile(known, 0.95))
        utility = utility + np.sqrt(0.1 * np.log(round) / state["last_round"][clients])
        seconds, preferred = state["seconds"][clients], state["preferred_seconds"][0]
        slow = seconds > preferred
        utility[slow] *= (preferred / seconds[slow]) ** self.alpha
        return utility

    def select(
        self,
        candidates: Ids,
        answers: Floats | None,
        state: SelectionState,
        facts: RoundFacts,
        rng: Generator,
    ) -> Selection:
        size = min(self.clients_per_round, len(candidates))
        explored = np.isfinite(state["utility"][candidates])
        new, old = candidates[~explored], candidates[explored]
        exploring = min(round(self.epsilon(facts.round) * size), len(new))
        exploring = max(exploring, size - len(old))
        chosen = rng.choice(new, exploring, replace=False)
        if size == exploring:
            return Selection(chosen)
        utility = self.utilities(old, state, facts.round)
        cutoff = 0.95 * np.sort(utility)[-(size - exploring)]
        among = utility >= cutoff
        old, utility = old[among], np.maximum(utility[among], np.finfo(float).tiny)
        drawn = rng.choice(old, size - exploring, replace=False, p=utility / utility.sum())
        return Selection(np.concatenate([chosen, drawn]))

    def update_state(self, state: SelectionState, outcome: Outcome, facts: RoundFacts) -> SelectionState:
        assert outcome.losses is not None
        clients, round = outcome.clients, facts.round
        gained: Floats = np.maximum(outcome.losses, 0.0) * facts.samples[clients]
        gains = np.append(state["gains"][1:], gained.sum())
        preferred, window = state["preferred_seconds"], self.pacer_rounds
        if round >= 2 * window and round % window == 0 and gains[window:].sum() < gains[:window].sum():
            preferred = preferred + self.pacer_seconds
        seconds = state["seconds"]
        if outcome.seconds is not None:
            seconds = _updated(seconds, clients, outcome.seconds)
        return {
            "utility": _updated(state["utility"], clients, gained),
            "last_round": _updated(state["last_round"], clients, float(round)),
            "seconds": seconds,
            "gains": gains,
            "preferred_seconds": preferred,
        }


class DivFl(Selecting):
    """The K clients whose gradients represent the gradients of all candidates best, by greedy
    maximisation of the facility-location function, each weighing 1/K.

        minimise over S:   G(S) = sum_k min_{i in S} |grad F_k(x) - grad F_i(x)|

    Candidates receive x and send their full gradients, which is what this selection costs. Ties go
    to the lowest client; a subset of candidates, if given, is drawn uniformly. The authors' code
    collects all gradients in the first round only, replaces the gradients of the selected clients
    afterwards, and weighs clients by their samples.
    """

    source = (
        "Balakrishnan et al., Diverse Client Selection for Federated Learning via Submodular Maximization,"
        " ICLR 2022 (DivFL)"
    )
    example = {"clients_per_round": 2, "candidates": 4}
    assures = Participation.assures

    kind: Literal["divfl"] = "divfl"
    candidates: ClientCount | None = None
    """Clients, drawn uniformly, whose gradients are compared (default: all that can be reached)."""

    def asks(self) -> Question | None:
        return "gradient"

    def select(
        self,
        candidates: Ids,
        answers: Floats | None,
        state: SelectionState,
        facts: RoundFacts,
        rng: Generator,
    ) -> Selection:
        assert answers is not None
        nearest, chosen = np.full(len(candidates), np.inf), np.zeros(len(candidates), bool)
        for _ in range(min(self.clients_per_round, len(candidates))):
            totals = np.minimum(nearest[:, None], answers).sum(0)
            totals[chosen] = np.inf
            best = int(np.nan_to_num(totals, nan=np.inf).argmin())
            chosen[best], nearest = True, np.minimum(nearest, answers[:, best])
        return Selection(candidates[chosen])


def _updated(values: Floats, clients: Ids, new: Floats | float) -> Floats:
    """`values` [N] with the `new` ones [M] of `clients` [M]."""
    values = values.copy()
    values[clients] = new
    return values


class FedCs(Selecting):
    """Select as many candidates as finish within the deadline, one after another the one that
    delays the round least.

    A round in which the clients S take part is estimated at

        max_{i in S} download_i + Theta(S),   Theta <- Theta + upload_i + max(0, compute_i - Theta)

    since uploads follow one another in the paper, while computation goes on meanwhile. The greedy
    step adds the client with the least increase of that time, and drops it where the round would
    take longer than the deadline. Departures: at most K clients are selected; server computation and
    selection itself take no time. The simulated clock lets clients upload at once, so a round takes
    no longer than estimated.
    """

    source = (
        "Nishio and Yonetani, Client Selection for Federated Learning with Heterogeneous Resources in"
        " Mobile Edge, ICC 2019 (FedCS)"
    )
    own_weighting = "samples"
    example = {"clients_per_round": 3, "deadline_seconds": 60.0}
    assures = Participation.assures

    kind: Literal["fedcs"] = "fedcs"
    candidates: ClientCount | None = None
    """Clients, drawn uniformly, that tell their resources (default: all that can be reached)."""
    deadline_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """T_round, the longest that a round may take by the estimate, in simulated seconds."""

    def needs_devices(self) -> bool:
        return True

    def select(
        self,
        candidates: Ids,
        answers: Floats | None,
        state: SelectionState,
        facts: RoundFacts,
        rng: Generator,
    ) -> Selection:
        assert facts.timing is not None
        download, compute, upload = facts.timing(candidates)
        left, chosen = np.ones(len(candidates), bool), np.zeros(len(candidates), bool)
        elapsed, slowest = 0.0, 0.0
        while left.any() and chosen.sum() < self.clients_per_round:
            later = elapsed + upload + np.maximum(0.0, compute - elapsed)
            rise = later - elapsed + np.maximum(download, slowest) - slowest
            best = int(np.where(left, rise, np.inf).argmin())
            left[best] = False
            if max(slowest, download[best]) + later[best] <= self.deadline_seconds:
                chosen[best], elapsed = True, float(later[best])
                slowest = max(slowest, float(download[best]))
        return Selection(candidates[chosen])
