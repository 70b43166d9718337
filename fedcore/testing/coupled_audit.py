"""Audit of differential privacy by two coupled runs on neighbouring data, for tests and `fedq audit-privacy`.

Both have the same noise, cohorts, mini-batches and masks of all others, and the second goes on with
what the first one released. Then a released value may move by its sensitivity and not more, and
nothing else that the adversary sees may move at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore import random
from fedcore.core import Aggregate, Aggregator, ClientUpdate, Cohort, Vectors
from fedcore.data.federated import FederatedData
from fedcore.data.user_datasets import DatasetStorage
from fedcore.engine.assignment import Engine, Job, Result
from fedcore.engine.round import PendingRound
from fedcore.engine.server import RunContext
from fedcore.privacy.base import DIRECTION, GRADIENT, MESSAGE, Neighbours, Privacy, PrivateRun, Release
from fedcore.problems import TrainingProblem
from fedcore.problems.supervised import SupervisedProblem
from fedcore.problems.transformed import Transformed
from fedcore.simulation import checkpoint
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from fedcore.spec.evaluation import Evaluation
from fedcore.spec.privacy import private_run
from fedcore.systems.availability import AvailabilityData, Reachable

ROUNDS = 3
TOLERANCE = 1e-6
"""Share by which a value may move beyond its sensitivity: rounding."""
HUGE = 1e9
LEAST_NOISE, MOST_NOISE = 0.5, 1.5
"""Deviation of the noise of a round over the declared one, for vectors long enough to tell."""
SENT = "sent"
Ids = NDArray[np.int64]
Key = tuple[Any, ...]
Change = Callable[[Tensor, float], Tensor]
"""The change [D] of a client, given those [m, D] of the others and the clipping norm C."""


@dataclass(frozen=True)
class World:
    """One of two neighbouring data sets: what it holds of the client, or sample, in which they differ."""

    absent: bool = False
    """The client takes no part."""
    samples: int | Literal["many"] | None = None
    """Samples of the client; `many` are three times as many as anyone has (default: its own)."""
    change: Change | None = None
    """What the client sends (default: what it has trained)."""
    features: float | None = None
    """Factor of the features of the sample, or of all samples of the client."""
    label: int = 0
    """Added to their labels."""


class Canary(NamedTuple):
    """A client, or a sample, that is meant to show what a mechanism lets through."""

    name: str
    first: World
    second: World
    last: bool = False
    """The client with the highest id, instead of the one that takes part most often."""
    factor: float = 1.0
    """Times the sensitivity by which it may move a value: 2 where the second world stands between two
    neighbours of it.
    """


class Violation(NamedTuple):
    """Something that a run lets through beyond what is accounted for."""

    canary: str
    round: int
    what: str
    ratio: float | None = None
    """By how many times its sensitivity a released value moved."""

    def __str__(self) -> str:
        return f"{self.what} (round {self.round}, canary `{self.canary}`)"


def _constant(value: float) -> Change:
    return lambda others, norm: others.new_full((others.shape[1],), value)


def _along(factor: float) -> Change:
    """Along the sum of the others, or the first axis if that is zero."""

    def change(others: Tensor, norm: float) -> Tensor:
        total = torch.where(others.isfinite().all(1)[:, None], others, 0.0).sum(0)
        if not bool(total.any()):
            total = torch.zeros_like(total)
            total[0] = 1.0
        return factor * norm * total / total.norm()

    return change


ZERO, HUGE_CHANGE, OPPOSITE, NOT_FINITE, AS_LONG_AS_C = (
    World(change=change)
    for change in (_constant(0.0), _along(HUGE), _along(-HUGE), _constant(float("nan")), _along(1.0))
)
MANY = World(samples="many", change=_constant(0.0))


def canaries(neighbours: Neighbours) -> Sequence[Canary]:
    """The eight canaries of a kind of neighbours."""
    if neighbours == "sample zeroed":
        # A sample whose gradient is not finite counts as zero.
        nothing = World(features=float("nan"))
        return (
            Canary("huge", World(features=HUGE), nothing),
            Canary("zero", World(features=0.0), nothing),
            Canary("not finite", World(features=float("inf")), World(), factor=2),
            Canary("opposed", World(features=HUGE), World(features=-HUGE), factor=2),
            Canary("its own", World(), nothing),
            Canary("last client", World(features=-HUGE), nothing, last=True),
            Canary("another label", World(features=HUGE), World(features=HUGE, label=1), factor=2),
            Canary("tie of two models", World(features=3.0), World(features=-3.0, label=3), factor=2),
        )
    without = None
    if neighbours == "client added":
        without = World(absent=True)
    elif neighbours == "client zeroed":
        without = replace(_with_other_data(ZERO), samples=1)
    many, few = (ZERO, ZERO) if neighbours == "data replaced" else (MANY, replace(ZERO, samples=1))
    return (
        Canary("huge", HUGE_CHANGE, without or _with_other_data(OPPOSITE)),
        Canary("zero", ZERO, without or _with_other_data(HUGE_CHANGE)),
        Canary("not finite", NOT_FINITE, without or _with_other_data(HUGE_CHANGE)),
        Canary("opposed", OPPOSITE, without or _with_other_data(AS_LONG_AS_C)),
        Canary("many samples", many, without or _with_other_data(few)),
        Canary("last client", HUGE_CHANGE, without or _with_other_data(OPPOSITE), last=True),
        Canary("as long as C", AS_LONG_AS_C, without or _with_other_data(ZERO)),
        Canary("its own", World(), without or _with_other_data(World())),
    )


def _with_other_data(world: World) -> World:
    return replace(world, features=-3.0, label=1)


@dataclass
class Tape:
    """What a run released, and what else its adversary saw. Filled in place while the run is played."""

    history: Tape | None = None
    """That of the first world, with whose released values the second goes on."""
    round: int = 0
    values: dict[Key, Tensor] = field(default_factory=dict)
    """Released values by (name, round, ...), with the noise that both worlds share."""
    passed: dict[Key, Any] = field(default_factory=dict)
    """What went on from there."""
    releases: dict[Key, Release] = field(default_factory=dict)
    """Declaration of the name in the round."""
    noise: dict[Key, Tensor] = field(default_factory=dict)
    """Noise over its declared deviation."""
    views: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What else is seen, by round; entries `kept ...` are clients' own, equal to rounding."""
    arrived: dict[int, Ids] = field(default_factory=dict)
    orders: dict[Key, NDArray[Any]] = field(default_factory=dict)
    """Permutations of the cohort, by purpose and round."""
    uses: set[Key] = field(default_factory=set)
    """Gradients in which the sample took part."""
    evaluations: Counter[Key] = field(default_factory=Counter)
    """Gradients by round and client."""
    draws: Counter[Key] = field(default_factory=Counter)
    """Noise vectors for gradients, by round and client."""
    rehearses: bool = False
    """True while an aggregator is tried."""
    disturbed: tuple[int, int] | None = None
    """Gradients that are moved: which of how many in a step."""

    def drop_gradients(self, slot: int, count: int) -> None:
        """Leave out each `count`-th gradient of a client from `slot` on: it is not released."""
        for key in [key for key in self.values if key[0] == GRADIENT and key[3] % count == slot]:
            del self.values[key]
            self.evaluations[key[1:3]] -= 1
            self.uses.discard(key)

    def release(self, key: Key, value: Tensor, declared: Release) -> None:
        """Note a released value."""
        self.values[key], self.releases[key] = value.detach().clone(), declared

    def see(self, name: str, value: Any) -> None:
        """Note what else is seen in this round."""
        self.views.setdefault(self.round, {})[name] = value

    def go_on(self, key: Key, value: Any) -> Any:
        """What goes on: `value`, or what the first world released."""
        self.passed[key] = value
        return value if self.history is None else self.history.passed.get(key, value)


class CoupledAudit(Simulation):
    """Runs of a specification in pairs of worlds."""

    def __init__(
        self,
        spec: ExperimentSpec,
        seed: int = 0,
        *,
        rounds: int = ROUNDS,
        data_dir: Path | None = None,
        shelf: DatasetStorage | None = None,
        weights_dir: Path | None = None,
    ) -> None:
        """Load the data of `spec`, whose `privacy` is audited over the first `rounds` rounds."""
        assert spec.privacy is not None
        super().__init__(audited(spec), seed, data_dir=data_dir, shelf=shelf, weights_dir=weights_dir)
        self._privacy, self._run = spec.privacy, private_run(spec)
        self._last = min(rounds, spec.rounds)
        self.neighbours: Neighbours = self._privacy.neighbours(self._run)
        self._fresh, self._undisturbed = self.checkpoint(), self._setting
        self._tape = Tape()

    def violations(self, chosen: Sequence[Canary] | None = None) -> list[Violation]:
        """What the canaries show; empty if nothing but what is declared."""
        if not self._privacy.noise(self._run):
            return [Violation("none", 1, "no noise is added: `noise_multiplier` is 0")]
        found: list[Violation] = list(self._declared())
        for canary in canaries(self.neighbours) if chosen is None else chosen:
            found += self.pair(canary)
        return found

    def pair(self, canary: Canary) -> list[Violation]:
        """Play both worlds of a canary and compare them."""
        client = len(self._undisturbed.problem.share) - 1 if canary.last else self._busiest
        first = self._play(canary.first, client, Tape())
        if self._privacy.clips_samples:
            self._keep_sent(canary.first, client, first)
        second = self._play(canary.second, client, Tape(first))
        compared = Comparison(self._privacy, self._run, canary, client, first, second)
        return compared.violations(self._last)

    def _keep_sent(self, world: World, client: int, tape: Tape) -> None:
        """Keep the gradients on which messages depend; the others stay with the client.

        Of several gradients in a step, each is moved in a run of its own.
        """
        each_step = {count / tape.draws[key] for key, count in tape.evaluations.items() if tape.draws[key]}
        count = int(max(each_step, default=1))
        if each_step != {float(count)} or count == 1:
            return
        for slot in range(count):
            moved = self._play(world, client, Tape(disturbed=(slot, count)))
            sent = [name for view in tape.views.values() for name in view if name.startswith(SENT)]
            if all(
                _equal(name, tape.views[round], moved.views.get(round, {}))
                for name in set(sent)
                for round in tape.views
                if name in tape.views[round]
            ):
                tape.drop_gradients(slot, count)

    def begin(self) -> PendingRound:
        """Play the next round up to its training."""
        opened = super().begin()
        self._tape.arrived[opened.number] = opened.selected.arrived.clients
        return opened

    @cached_property
    def _busiest(self) -> int:
        """The client that takes part most often, and of several the one with the most samples."""
        cohorts = self._play(World(), 0, Tape()).arrived.values()
        sizes = self._undisturbed.problem.sizes
        often = np.bincount(np.concatenate([*cohorts, []]).astype(np.int64), minlength=len(sizes))
        return int(np.lexsort((sizes, often))[-1])

    def _declared(self) -> Iterator[Violation]:
        """What a round is declared to release costs what the accountant counts."""
        privacy, run = self._privacy, self._run
        if privacy.noise_of_rounds(2) != Privacy.noise_of_rounds(privacy, 2):
            return  # rounds share noise: all are compared together
        state = self._undisturbed.algorithm.aggregator.start(self._first_model)
        releases = privacy.released(run, state).values()
        declared = sum((each.sensitivity / each.deviation) ** 2 for each in releases) ** -0.5
        ratio = privacy.releases(privacy.noise(run), run, 1)[0].ratio
        if not declared >= ratio * (1 - TOLERANCE):
            what = f"noise of {declared:.4g} times the sensitivity is declared, and {ratio:.4g} accounted for"
            yield Violation("none", 1, what, ratio / declared)

    def _play(self, world: World, client: int, tape: Tape) -> Tape:
        self.restore(self._fresh)
        self._tape, self._setting = tape, self._setting_of(world, client, tape)
        with _coupled_orders(tape, client) if world.absent or tape.history is None else nullcontext():
            while self.round < self._last and not self.finished:
                tape.round = self.round + 1
                reported = self.advance().extra
                for name in reported.keys() - {"simulated_seconds"}:
                    tape.see(f"reported {name}", reported[name])
                self._see_state(tape, client)
        return tape

    def _see_state(self, tape: Tape, client: int) -> None:
        """Note all that a checkpoint stores, apart from what the client itself keeps."""
        tensors, manifest = checkpoint.loads(self.checkpoint())
        rows = {name: value for name, value in tensors.items() if name.startswith("clients.rows.")}
        for place, other in enumerate(tensors["clients.ids"].tolist()):
            for name, value in rows.items() if other != client else ():
                tape.see(f"kept {name.removeprefix('clients.rows.')} of client {other}", value[place])
        # Who took part and how long it took is the server's own, unless that is not trusted.
        private = {"clock", "simulated_seconds"} if self._privacy.replaces_aggregator else set()
        for name, content in manifest.items():
            if name not in {*private, "engine", "watch", "gang"}:
                tape.see(name, content)
        for name, value in {**tensors, **{f"model {name}": value for name, value in self.model().items()}}.items():
            if not name.startswith(("clients.", "heard.")):
                tape.see(name, value)

    def _setting_of(self, world: World, client: int, tape: Tape) -> RunContext:
        setting, privacy = self._undisturbed, self._privacy
        clips, algorithm = privacy.clips_samples, setting.algorithm
        problem = _problem_of(setting.problem, world, client, one_sample=clips)
        aggregator = algorithm.aggregator
        if clips:
            problem = self._recorded(problem, tape, client)
        elif privacy.replaces_aggregator:
            aggregator = with_combine(aggregator, partial(self._combine, tape))
        else:
            spec = self.spec
            plain = spec.aggregator.build() if spec.aggregator else spec.algorithm.aggregator()
            within = with_combine(plain, partial(self._receive, tape, client), each=True)
            made = privacy.aggregator(within, self._run).for_model(self._problem.coordinates())
            aggregator = with_combine(made, partial(self._send, tape))
        return replace(
            setting,
            algorithm=replace(algorithm, aggregator=aggregator),
            problem=problem,
            engine=self._trained(setting.engine, world, client, tape),
            availability=_Without(setting.availability, client) if world.absent else setting.availability,
        )

    def _combine(
        self, tape: Tape, own: Callable[..., Aggregate], seen: Tensor, cohort: Cohort, state: Vectors
    ) -> Aggregate:
        """Combine in an aggregator that adds the noise itself."""
        released, combined = self._privacy.released(self._run, state), own(seen, cohort, state)
        if tape.history is None and DIRECTION in released:
            alone = own(torch.zeros_like(seen), cohort, state).direction
            tape.noise[DIRECTION, tape.round] = alone / released[DIRECTION].deviation
            again = partial(own.func, own.args[0].of_round(self.seed + 1, tape.round))  # type: ignore[attr-defined]
            other = again(seen, cohort, state).direction - again(torch.zeros_like(seen), cohort, state).direction
            self._compare_sums(tape, DIRECTION, combined.direction - alone, other, released[DIRECTION])
        if (DIRECTION, tape.round) in tape.values:
            tape.see("released more than once", tape.round)
        for name, declared in released.items():
            value = combined.direction if name == DIRECTION else combined.aggregator_state[name]
            value = value.reshape(-1).double()
            tape.release((name, tape.round), value.log() if declared.logarithm else value, declared)
        for name, value in combined.aggregator_state.items():
            if name not in released:
                tape.see(f"aggregator's {name}", value)
        if DIRECTION not in released:
            tape.see(DIRECTION, combined.direction)
        return tape.go_on(("combined", tape.round), combined)

    def _send(
        self, tape: Tape, own: Callable[..., Aggregate], seen: Tensor, cohort: Cohort, state: Vectors
    ) -> Aggregate:
        """Combine in an aggregator whose clients add noise: first to changes of zero, for the noise alone."""
        if tape.history is None:
            declared = self._privacy.released(self._run, state)[MESSAGE]
            again = partial(own.func, own.args[0].of_round(self.seed + 1, tape.round))  # type: ignore[attr-defined]
            alone, *others = (
                self._messages(tape, combine, changes, cohort, state)
                for combine, changes in (
                    (own, torch.zeros_like(seen)),
                    (own, seen),
                    (again, seen),
                    (again, torch.zeros_like(seen)),
                )
            )
            self._compare_sums(tape, MESSAGE, others[0] - alone, others[1] - others[2], declared)
            for client, message in zip(cohort.clients.tolist(), alone, strict=True):
                tape.noise[MESSAGE, tape.round, client] = message / declared.deviation
        return own(seen, cohort, state)

    @staticmethod
    def _messages(
        tape: Tape, combine: Callable[..., Aggregate], seen: Tensor, cohort: Cohort, state: Vectors
    ) -> Tensor:
        """[M, D] the messages that an aggregator whose clients add noise makes of changes `seen` [M, D]."""
        tape.rehearses = True
        combine(seen, cohort, state)
        tape.rehearses = False
        messages: Tensor = tape.passed.pop((MESSAGE,))
        return messages

    def _compare_sums(
        self, tape: Tape, name: str, value: Tensor, other: Tensor, declared: Release
    ) -> None:
        """Note if what is released without its noise depends on the noise."""
        if not float((value - other).norm()) <= TOLERANCE * max(declared.sensitivity, declared.deviation):
            tape.see(f"{name} whose noise depends on the data", object())

    def _receive(
        self,
        tape: Tape,
        client: int,
        own: Callable[..., Aggregate],
        seen: Tensor,
        cohort: Cohort,
        state: Vectors,
    ) -> Aggregate:
        """Combine the messages that a server receives which is not trusted."""
        if tape.rehearses:
            tape.passed[MESSAGE,] = seen
            return own(seen, cohort, state)
        declared = self._privacy.released(self._run, state)[MESSAGE]
        for member, message in zip(cohort.clients.tolist(), seen, strict=True):
            tape.release((MESSAGE, tape.round, member), message, declared)
            if member != client:
                tape.see(f"message of client {member}", message)
        for part in fields(cohort):
            tape.see(f"cohort's {part.name}", getattr(cohort, part.name))
        going = tape.go_on(("received", tape.round), seen)
        return own(going if len(going) == len(seen) else seen, cohort, state)

    def _trained(self, engine: Engine, world: World, client: int, tape: Tape) -> Engine:
        """The engine, whose `client` sends what `world` says."""

        def train(jobs: Sequence[Job]) -> list[Result]:
            return [self._sent(job, result, world, client, tape) for job, result in zip(jobs, engine(jobs), strict=True)]

        return train

    def _sent(self, job: Job, result: Result, world: World, client: int, tape: Tape) -> Result:
        place = np.flatnonzero(job.work.clients == client)
        if self._privacy.clips_samples:
            self._see_noise(job, tape)
            if isinstance(result, ClientUpdate):
                tape.see(f"{SENT} change", result.delta)
                for name, sent in result.shared.items():
                    tape.see(f"{SENT} {name}", sent)
        if world.change is None or not len(place):
            return result
        assert isinstance(result, ClientUpdate)
        row, delta = int(place[0]), result.delta.clone()
        others = torch.cat([delta[:row], delta[row + 1 :]])
        delta[row] = world.change(others, self._privacy.clip_norm)
        return replace(result, delta=delta)

    def _see_noise(self, job: Job, tape: Tape) -> None:
        deviation = self._privacy.released(self._run, {})[GRADIENT].deviation
        for client, noise in zip(job.work.clients.tolist(), job.work.noise or (), strict=False):
            tape.draws[tape.round, client] += len(noise)
            for step, drawn in enumerate(noise if tape.history is None else ()):
                scaled = torch.from_numpy(drawn) * self._batch / deviation
                tape.noise[GRADIENT, tape.round, client, step] = scaled

    @property
    def _batch(self) -> float:
        size = self.spec.local.batch_size
        return 1.0 if size == "full" else float(size)

    def _recorded(self, problem: TrainingProblem, tape: Tape, client: int) -> TrainingProblem:
        """The problem, whose gradients of mini-batches are released."""
        found: Any = copy(problem)
        declared = self._privacy.released(self._run, {})[GRADIENT]
        size = int(problem.sizes[client])

        def note(member: int, gradient: Tensor, batch: Tensor) -> Tensor:
            key = (GRADIENT, tape.round, member, tape.evaluations[tape.round, member])
            tape.evaluations[tape.round, member] += 1
            if member == client and bool(((batch >= 0) & (batch % size == 0)).any()):
                tape.uses.add(key)
            tape.release(key, self._batch * gradient, declared)
            going: Tensor = tape.go_on(key, gradient.clone())
            if tape.disturbed is not None and key[3] % tape.disturbed[1] == tape.disturbed[0]:
                going = going + declared.sensitivity
            return going

        def gradient(theta: Tensor, member: int, samples: Tensor | None, *step: Any) -> Tensor:
            own = problem.gradient(theta, member, samples, *step)
            return own if samples is None else note(member, own, samples)

        def replica() -> Callable[..., Tensor]:
            inner = problem.replica()

            def one(theta: Tensor, member: int, samples: Tensor | None, *step: Any) -> Tensor:
                own = inner(theta, member, samples, *step)
                return own if samples is None else note(member, own, samples)

            return one

        found.gradient, found.replica = gradient, replica
        found.stack = lambda clients, batches, *step: _RecordedStack(
            problem.stack(clients, batches, *step), clients, batches, note
        )
        return found  # type: ignore[no-any-return]


class _RecordedStack:
    """Gradients of several clients, each noted."""

    def __init__(
        self, stacked: Any, clients: Ids, batches: Tensor, note: Callable[[int, Tensor, Tensor], Tensor]
    ) -> None:
        self._stacked, self._clients, self._batches, self._note = stacked, clients, batches, note

    def gradient(self, theta: Tensor, k: int, **how: Any) -> Tensor:
        """Gradients [m, D] at `theta` [m, D]."""
        own = self._stacked.gradient(theta, k, **how)
        rows = zip(self._clients.tolist(), own, self._batches[:, k], strict=True)
        return torch.stack([self._note(*row) for row in rows])


class _Without:
    """An availability without one client."""

    def __init__(self, given: AvailabilityData | None, client: int) -> None:
        self._given, self._client = given, client

    def empty_round_seconds(self) -> float:
        """As without it."""
        return 0.0 if self._given is None else self._given.empty_round_seconds()

    def reachable_at(self, seconds: float, population: int, seed: int, round: int) -> Reachable:
        """All others who can be reached."""
        given = None if self._given is None else self._given.reachable_at(seconds, population, seed, round)
        return _Others(given, population, self._client)


@dataclass(frozen=True)
class _Others:
    given: Reachable | None
    population: int
    client: int

    def all(self) -> Ids:
        """Ascending."""
        found = np.arange(self.population) if self.given is None else self.given.all()
        return found[found != self.client]

    def has(self, clients: Ids) -> NDArray[np.bool_]:
        """[m] true for each of `clients` [m] but the one."""
        there = np.ones(len(clients), bool) if self.given is None else self.given.has(clients)
        return there & (clients != self.client)

    def oversample_size(self, wanted: int) -> int | None:
        """All are at hand."""
        return None


@dataclass(frozen=True)
class Comparison:
    """Two worlds of a canary, side by side."""

    privacy: Privacy
    run: PrivateRun
    canary: Canary
    client: int
    first: Tape
    second: Tape

    def violations(self, rounds: int) -> list[Violation]:
        """One of each kind, the first in time, and the largest move."""
        found = [*self._same(rounds), *self._counted(rounds), *self._moved(), *self._noise(), *self._total(rounds)]
        return [Violation(self.canary.name, *each) for each in found]

    def _same(self, rounds: int) -> Iterator[tuple[int, str]]:
        """What is not released may not differ."""
        for round in range(1, rounds + 1):
            cohorts = [tape.arrived.get(round) for tape in (self.first, self.second)]
            if any(cohort is None for cohort in cohorts):
                yield round, "the run ended, since the model is not finite"
                return
            if not np.array_equal(*(cohort[cohort != self.client] for cohort in cohorts)):  # type: ignore[index]
                yield round, "other clients take part"
                return
            seen, again = self.first.views.get(round, {}), self.second.views.get(round, {})
            differing = [name for name in seen.keys() | again.keys() if not _equal(name, seen, again)]
            if differing:
                yield round, f"what is not released with noise differs: {', '.join(sorted(differing)[:5])}"
                return

    def _counted(self, rounds: int) -> Iterator[tuple[int, str]]:
        """As many releases as are accounted for, each with noise of its own."""
        if self.privacy.clips_samples:
            yield from self._counted_gradients(rounds)
            return
        if not self.privacy.replaces_aggregator:
            return
        for round in range(1, rounds + 1):
            for tape in (self.first, self.second):
                if round in tape.arrived and ("combined", round) not in tape.passed:
                    yield round, "a round without a client releases nothing, which shows"
                    return

    def _counted_gradients(self, rounds: int) -> Iterator[tuple[int, str]]:
        for (round, client), count in self.first.evaluations.items():
            drawn = self.first.draws[round, client]
            if count > drawn:
                yield round, f"{count} gradients of a client have the noise of {drawn}"
                break
        used = 0
        for round in range(1, rounds + 1):
            used += sum(key[1] == round for key in self.first.uses)
            _, counted = self.privacy.releases(self.privacy.noise(self.run), self.run, round)
            if used > counted:
                yield round, f"a sample is in {used} gradients, and the accountant counts {counted}"
                return

    def _moved(self) -> Iterator[tuple[int, str, float]]:
        """Released values move by their sensitivity at most."""
        worst: dict[str, tuple[int, float]] = {}
        for key, value in self.first.values.items():
            name, round = key[:2]
            other, declared = self.second.values.get(key), self.first.releases[key]
            if other is None or len(other) != len(value):
                continue
            allowed = declared.sensitivity * self.canary.factor
            if name in {MESSAGE, GRADIENT} and key[2] != self.client:
                allowed *= TOLERANCE
            moved = float((value - other).norm()) / allowed
            if moved != moved:  # noqa: PLR0124 - NaN
                moved = float("inf")
            if moved > max(1 + TOLERANCE, worst.get(name, (0, 0.0))[1]):
                worst[name] = round, moved
        for name, (round, moved) in worst.items():
            yield round, f"the released {name} moves by {moved:.4g} times its sensitivity", moved

    def _noise(self) -> Iterator[tuple[int, str]]:
        """The noise has the declared size, and is no other release's."""
        rows = self.privacy.noise_of_rounds(max((key[1] for key in self.first.noise), default=1))
        seen: dict[bytes, Key] = {}
        for key, noise in self.first.noise.items():
            expected = float(np.linalg.norm(rows[key[1] - 1]))
            found = float(noise.double().square().mean().sqrt()) / expected
            enough = len(noise) >= 100
            if not (LEAST_NOISE < found < MOST_NOISE if enough else found > 0):
                yield key[1], f"the noise of the released {key[0]} has {found:.3g} times its declared deviation"
                return
            drawn = (noise.double() / expected).numpy(force=True).round(9).tobytes()
            if drawn in seen:
                yield key[1], f"the released {key[0]} has the noise of round {seen[drawn][1]} once more"
                return
            seen[drawn] = key

    def _total(self, rounds: int) -> Iterator[tuple[int, str, float]]:
        """All rounds so far move, over their noise, by what the accountant counts.

        mu^2 = sum_d m_d' (F F')^-1 m_d, where F [T, K] are the noises of the rounds and m_d [T] the
        moves in coordinate d, over the deviation.
        """
        moves: dict[Key, dict[int, list[Tensor]]] = {}
        for key, value in self.first.values.items():
            other = self.second.values.get(key)
            if other is None or len(other) != len(value) or self.first.releases[key].deviation == 0:
                continue
            move = (value - other).double() / (self.first.releases[key].deviation * self.canary.factor)
            moves.setdefault((key[0], *key[2:]), {}).setdefault(key[1], []).append(move)
        factors = np.array(self.privacy.noise_of_rounds(rounds))
        for last in range(1, rounds + 1):
            square = 0.0
            for by_round in moves.values():
                any_move = next(iter(by_round.values()))[0]
                stacked = torch.stack([sum(by_round.get(t, []), torch.zeros_like(any_move)) for t in range(1, last + 1)])
                part = torch.from_numpy(np.linalg.inv(factors[:last] @ factors[:last].T)).to(stacked)
                square += float(torch.einsum("td,ts,sd->", stacked, part, stacked))
            release, count = self.privacy.releases(self.privacy.noise(self.run), self.run, last)
            allowed = count / release.ratio**2
            if not square <= allowed * (1 + TOLERANCE) + 1e-12:
                ratio = (square / allowed) ** 0.5 if allowed else float("inf")
                yield last, f"all releases so far move by {ratio:.4g} times what the accountant counts", ratio
                return


def audited(spec: ExperimentSpec) -> ExperimentSpec:
    """The specification as it is audited: in float64, without measures and early ends."""
    execution = spec.execution.model_copy(update={"precision": "float64", "autocast": None})
    return spec.model_copy(
        update={
            "evaluation": Evaluation(measures=[]),
            "execution": execution,
            "early_stopping": None,
            "search": None,
        }
    )


def with_combine(
    aggregator: Aggregator, combine: Callable[..., Aggregate], *, each: bool = False
) -> Aggregator:
    """The aggregator with another `combine`, which is given its own one before the arguments; with `each`
    it sees each change, also where sums of them are enough.
    """
    kind: Any = type(aggregator)

    def wrapped(self: Aggregator, *given: Any) -> Aggregate:
        return combine(partial(of_each if each else kind.combine, self), *given)

    def of_each(self: Aggregator, seen: Tensor, cohort: Cohort, state: Vectors) -> Aggregate:
        sums = kind.weighted_sums(self, cohort)
        found: Aggregate = kind.combine(self, seen if sums is None else sums @ seen, cohort, state)
        return found

    methods: dict[str, Any] = {"combine": wrapped}
    if each:
        methods["weighted_sums"] = lambda self, cohort: None
    made = type(kind.__name__, (kind,), methods)
    return made(**{part.name: getattr(aggregator, part.name) for part in fields(aggregator) if part.init})


def _problem_of(
    problem: TrainingProblem, world: World, client: int, *, one_sample: bool
) -> TrainingProblem:
    """The problem with the client's data, or its first sample, as in `world`."""
    if isinstance(problem, Transformed):
        return Transformed(_problem_of(problem.problem, world, client, one_sample=one_sample))
    found: Any = copy(problem)
    if isinstance(problem, SupervisedProblem):
        data, rows = problem.data, problem.data.rows(client)
        if world.features is not None:
            data = _with_samples(data, rows[:1] if one_sample else rows, world.features, world.label)
        if world.samples is not None:
            data = _with_size(data, client, _size(problem, world))
        if data is not problem.data:
            found = problem.training_on(data)
    if world.samples is not None or world.absent:
        found.sizes = problem.sizes.copy()
        found.sizes[client] = _size(problem, world)
        found.share = found.sizes / max(1, found.sizes.sum())
    return found  # type: ignore[no-any-return]


def _size(problem: TrainingProblem, world: World) -> int:
    return 3 * int(problem.sizes.max()) if world.samples == "many" else world.samples or 0


def _with_size(data: FederatedData, client: int, size: int) -> FederatedData:
    """The data with `size` samples of the client: its first ones, over and over."""
    first, after = data.offsets[client : client + 2].tolist()
    held = data.order[first:after].repeat(-(-size // (after - first)))[:size]
    offsets = data.offsets.copy()
    offsets[client + 1 :] += size - (after - first)
    return replace(data, order=torch.cat([data.order[:first], held, data.order[after:]]), offsets=offsets)


def _with_samples(data: FederatedData, rows: Tensor, factor: float, label: int) -> FederatedData:
    """The data with the training samples `rows` changed; symbols, which have no factors, are the same."""
    train = data.dataset.train.numbers()
    features, labels = train.features, train.labels.clone()
    if features.is_floating_point():
        features = features.clone()
        features[rows] = factor if np.isnan(factor) else features[rows] * factor
    if label:
        held = labels[rows]
        labels[rows] = torch.where(held < 0, held, (held + label) % (labels.max() + 1))
    return replace(data, dataset=replace(data.dataset, train=replace(train, features=features, labels=labels)))


@contextmanager
def _coupled_orders(tape: Tape, client: int) -> Iterator[None]:
    """Have orders of the cohort without `client` be those of the first world without it."""
    original = random.generator

    class Ordered(np.random.Generator):
        key: Key = ()

        def permutation(self, x: Any, axis: int = 0) -> Any:
            drawn = super().permutation(x, axis)
            if not isinstance(x, int):
                return drawn
            history = tape.history
            if history is None:
                tape.orders[self.key] = drawn
                return drawn
            before = history.orders.get(self.key)
            if before is None or len(before) != x + 1:
                return drawn
            place = int(np.searchsorted(history.arrived[tape.round], client))
            others = np.delete(before, place)
            return others - (others > before[place])

    def generator(seed: int, purpose: str, round: int = 0, client: int = 0, step: int = 0) -> np.random.Generator:
        made = Ordered(original(seed, purpose, round, client, step).bit_generator)
        made.key = purpose, round, client, step
        return made

    with patch.object(random, "generator", generator):
        yield


def _equal(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """True if both have it, to the bit; what clients keep to rounding."""
    if name not in first or name not in second:
        return False
    one, other = first[name], second[name]
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if name.startswith("kept "):
        return torch.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
    return one.shape == other.shape and one.dtype == other.dtype and _bits(one) == _bits(other)


def _bits(value: Tensor) -> bytes:
    return value.detach().contiguous().numpy(force=True).tobytes()
