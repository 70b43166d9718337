"""`fedq audit-privacy`: a specification put to two tests of its differential privacy, on its own data and
with its own model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from scipy import stats
from torch import Tensor

from fedcore.core import Aggregate, Cohort, Vectors
from fedcore.errors import SpecificationError
from fedcore.privacy.base import POINTER, Neighbours
from fedcore.random import generator
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from fedcore.spec.privacy import private_run
from fedcore.spec.problem import dimension
from fedcore.systems.participation import Bernoulli
from fedcore.testing.privacy.coupled import CoupledAudit, prepare_audit, with_combine
from fedcore.testing.privacy.worlds import list_canaries

PAIRED_ROUNDS = 2
CANARIES, FEWEST = 1_000, 50
CANARY_BYTES = 256 << 20
"""Memory that the changes of the canaries may take."""
MANY_DIMENSIONS = 20
"""Parameters for each canary from which on random directions are as good as orthogonal ones."""
GUESSES = 0.4
"""Share of the canaries about which a guess is made: the canaries with the highest and lowest
scores.
"""
CONFIDENCE = 0.999
COINS = "coins of canaries"
TAKES_PART = "canaries that take part"
DIRECTIONS = "directions of canaries"
"""Purposes of randomness."""
COUNTED: frozenset[Neighbours] = frozenset({"client added", "client zeroed"})
"""Neighbours that differ in whether a client's change counts."""


class GuessedCanaries(BaseModel):
    """Guesses about which canaries a run contained, and what they say about epsilon."""

    model_config = ConfigDict(frozen=True)

    canaries: int
    """m, each included by a fair coin."""
    guesses: int
    """How many were guessed about."""
    right: int
    """How many guesses were right."""
    epsilon_at_least: float
    """Lower bound of epsilon, with a confidence of 99.9 %."""
    epsilon_shown_at_most: float
    """The bound if all guesses were right: the test cannot show more."""


class ArmAudit(BaseModel):
    """The audit of one arm of a specification."""

    model_config = ConfigDict(frozen=True)

    arm: str
    """Name of the arm."""
    mechanism: str
    """Kind of `privacy`."""
    epsilon: float
    """epsilon as reported after the last round."""
    delta: float
    """delta of (epsilon, delta)."""
    pairs: int
    """Pairs of coupled runs."""
    rounds: int
    """Rounds of each coupled run."""
    violations: list[str]
    """Findings of the coupled runs: what leaves that is not accounted for."""
    guessed: GuessedCanaries | None
    """Null where canaries cannot be guessed: `note` says why."""
    note: str
    """Why canaries were not guessed; empty if they were."""

    @property
    def refuted(self) -> bool:
        """True if the epsilon that is reported does not hold."""
        return bool(self.violations) or (
            self.guessed is not None and self.guessed.epsilon_at_least > self.epsilon
        )


class PrivacyReport(BaseModel):
    """The audits of the arms of a specification that have `privacy`."""

    model_config = ConfigDict(frozen=True)

    arms: list[ArmAudit]
    """Audits of arms, in the order of the specification."""
    refuted: bool
    """True if the epsilon of an arm does not hold."""


def audit_privacy(
    spec: ExperimentSpec,
    *,
    canaries_guessed: int = CANARIES,
    data_dir: Path | None = None,
    models_allowed: Sequence[str] = (),
) -> PrivacyReport:
    """Audit each arm of a specification, with its first seed.

    Raises SpecificationError if no arm has `privacy`, and whatever keeps its runs from being started.
    """
    arms = [(arm.name, arm.spec) for arm in spec.arms() if arm.spec.privacy is not None]
    if not arms:
        raise SpecificationError(POINTER, "is not given, so there is nothing to audit: add a mechanism")
    sources: dict[str, Any] = {"data_dir": data_dir, "models_allowed": models_allowed}
    found = []
    for name, member in arms:
        seed = member.seeds[0]
        coupled = CoupledAudit(member, seed, rounds=PAIRED_ROUNDS, **sources)
        note = _why_not_guessed(member)
        guessed = None
        if not note:
            guessed = CanaryGame(member, seed, canaries_guessed, **sources).play()
        found.append(_report(name, member, coupled, guessed, note))
    return PrivacyReport(arms=found, refuted=any(arm.refuted for arm in found))


def _report(
    name: str, spec: ExperimentSpec, coupled: CoupledAudit, guessed: GuessedCanaries | None, note: str
) -> ArmAudit:
    assert spec.privacy is not None
    run, epsilon = private_run(spec), spec.epsilon(spec.rounds)
    assert epsilon is not None
    return ArmAudit(
        arm=name,
        mechanism=spec.privacy.kind,
        epsilon=epsilon,
        delta=spec.privacy.delta,
        pairs=len(list_canaries(spec.privacy.neighbours(run))),
        rounds=min(PAIRED_ROUNDS, spec.rounds),
        violations=[str(violation) for violation in coupled.violations()],
        guessed=guessed,
        note=note,
    )


def _why_not_guessed(spec: ExperimentSpec) -> str:
    """Reason why canaries cannot be guessed under a mechanism; empty if they can."""
    assert spec.privacy is not None
    neighbours = spec.privacy.neighbours(private_run(spec))
    if not spec.privacy.replaces_aggregator or neighbours not in COUNTED:
        return f"needs clients that are added or count as zero; neighbours here: {neighbours}"
    if not spec.privacy.noise(private_run(spec)):
        return "no noise is added"
    dim = dimension(spec.problem)
    if _room(FEWEST, dim) < FEWEST:
        return f"a model of {dim} parameters has no room for {FEWEST} canaries, the fewest that say anything"
    return ""


def _room(wanted: int, dim: int) -> int:
    """How many of the `wanted` canaries a model of `dim` parameters has room for: more than parameters
    would stand in each other's way, and their changes are held in memory, in double precision at most.
    """
    return min(wanted, dim, CANARY_BYTES // (8 * dim))


class CanaryGame(Simulation):
    """A run with canaries: m clients beside the others, each included by a fair coin, which send C along a
    direction of their own whenever they take part.

    An attacker who sees the directions that are released, and knows all other clients, guesses which were
    included: those along which the model moved most, and not those along which it moved least.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        seed: int,
        count: int = CANARIES,
        *,
        data_dir: Path | None = None,
        models_allowed: Sequence[str] = (),
    ) -> None:
        """Add `count` canaries, or as many as there is room for, to the run of a seed.

        For a specification that `_why_not_guessed` accepts.
        """
        assert spec.privacy is not None
        super().__init__(
            prepare_audit(spec),
            seed,
            data_dir=data_dir,
            models_allowed=models_allowed,
        )
        self._mechanism, self._facts = spec.privacy, private_run(spec)
        x = self.state.server.x[: self.context.evaluated.dim]
        self._count = _room(count, len(x))
        drawn = torch.from_numpy(generator(seed, DIRECTIONS).standard_normal((self._count, len(x)))).to(x)
        if len(x) < MANY_DIMENSIONS * self._count:
            drawn = torch.linalg.qr(drawn.T).Q.T
        self._directions = drawn / drawn.norm(dim=1, keepdim=True)
        self._included = generator(seed, COINS).random(self._count) < 0.5
        self._scores = x.new_zeros(self._count)
        algorithm = self.context.algorithm
        aggregator = with_combine(algorithm.aggregator, partial(self._combine))
        self.context = replace(self.context, algorithm=replace(algorithm, aggregator=aggregator))

    def play(self) -> GuessedCanaries:
        """Play all rounds, and guess."""
        while not self.finished:
            self.advance()
        guesses = 2 * int(self._count * GUESSES / 2)
        order = np.argsort(self._scores.numpy(force=True), kind="stable")
        right = (~self._included[order[: guesses // 2]]).sum() + self._included[
            order[-(guesses // 2) :]
        ].sum()
        delta = self._mechanism.delta
        return GuessedCanaries(
            canaries=self._count,
            guesses=guesses,
            right=int(right),
            epsilon_at_least=binomial_bound(guesses, int(right), self._count, delta, CONFIDENCE),
            epsilon_shown_at_most=binomial_bound(guesses, guesses, self._count, delta, CONFIDENCE),
        )

    def _combine(
        self, own: Callable[..., Aggregate], seen: Tensor, cohort: Cohort, state: Vectors
    ) -> Aggregate:
        taking_part = np.flatnonzero(self._included & self._takes_part(cohort))
        norm = float(state["clip_norm"]) if "clip_norm" in state else self._mechanism.clip_norm
        added = norm * self._directions[torch.from_numpy(taking_part).to(seen.device)]
        combined = own(torch.cat([seen, added.to(seen)]), _with_clients(cohort, len(taking_part)), state)
        # The attacker may know all other clients: their part is taken out.
        others = own(seen, cohort, state).direction - own(torch.zeros_like(seen), cohort, state).direction
        self._scores += self._directions @ (combined.direction - others).to(self._directions)
        return combined

    def _takes_part(self, cohort: Cohort) -> NDArray[np.bool_]:
        """[m] the canaries of the round: each with the scheme's probability or, where rounds are known,
        with the client that it goes with.
        """
        scheme = self._facts.participation
        if isinstance(scheme, Bernoulli):
            assert isinstance(scheme.probability, float)
            lots = generator(self.seed, TAKES_PART, self.round + 1).random(self._count)
            return lots < scheme.probability
        beside = np.arange(self._count) % self._facts.clients
        return np.isin(beside, cohort.clients.numpy(force=True))


def _with_clients(cohort: Cohort, count: int) -> Cohort:
    """The cohort with `count` clients more, with the ids that come next."""

    def longer(values: Tensor, filling: float) -> Tensor:
        return torch.cat([values, values.new_full((count,), filling)])

    ids = torch.arange(count, device=cohort.clients.device) + cohort.population
    return replace(
        cohort,
        clients=torch.cat([cohort.clients, ids]),
        weights=longer(cohort.weights, 1.0),
        share=longer(cohort.share, 0.0),
        objective=longer(cohort.objective, 0.0),
        steps=longer(cohort.steps, 1),
        normaliser=longer(cohort.normaliser, 1.0),
    )


def binomial_bound(guesses: int, right: int, canaries: int, delta: float, confidence: float = 0.999) -> float:
    """The largest epsilon that this number of `right` guesses refutes, of `guesses` about `canaries` that
    were each included by a fair coin: Steinke, Nasr and Jagielski, Privacy Auditing with One (1)
    Training Run, NeurIPS 2023, Theorem 5.2.

        P[v or more right] <= P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i
        B ~ Bin(r, e^eps / (1 + e^eps))
    """

    def chance(epsilon: float) -> float:
        q = 1 / (1 + exp(-epsilon))
        below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
        worst = float((below / np.arange(1, right + 1)).max()) if right else 0.0
        return float(stats.binom.sf(right - 1, guesses, q)) + 2 * canaries * delta * worst

    low, high = 0.0, 1.0
    if chance(low) >= 1 - confidence:
        return 0.0
    while chance(high) < 1 - confidence:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < 1 - confidence else (low, middle)
    return low
