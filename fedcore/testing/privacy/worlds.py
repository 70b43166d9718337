"""Two neighbouring worlds: what each holds of the client, or the sample, in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcore.data.federated import FederatedData
from fedcore.privacy.base import Neighbours
from fedcore.problems import TrainingProblem
from fedcore.problems.supervised import SupervisedProblem
from fedcore.problems.transformed import Transformed
from fedcore.systems.availability import AvailabilityData, TraceAvailable

HUGE = 1e9
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
    """Makes the change that the client sends (default: as it trained)."""
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


def _constant(value: float) -> Change:
    return lambda others, _: others.new_full((others.shape[1],), value)


def _along(factor: float) -> Change:
    """Along the sum of the others, or the first axis if that is zero."""

    def change(others: Tensor, norm: float) -> Tensor:
        total = torch.where(others.isfinite().all(1)[:, None], others, 0.0).sum(0)
        if not bool(total.any()):
            total = torch.zeros_like(total)
            total[0] = 1.0
        return total * (factor * norm / float(total.norm()))

    return change


ZERO, HUGE_CHANGE, OPPOSITE, NOT_FINITE, AS_LONG_AS_C = (
    World(change=change)
    for change in (_constant(0.0), _along(HUGE), _along(-HUGE), _constant(float("nan")), _along(1.0))
)
MANY = World(samples="many", change=_constant(0.0))


def list_canaries(neighbours: Neighbours) -> Sequence[Canary]:
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


class WithoutClient:
    """An availability without one client."""

    def __init__(self, given: AvailabilityData | None, client: int) -> None:
        self._given, self._client = given, client

    def empty_round_seconds(self) -> float:
        """Simulated length of a round without clients: as of the `given` availability, 0 without
        one.
        """
        return 0.0 if self._given is None else self._given.empty_round_seconds()

    def reachable_at(self, seconds: float, population: int, seed: int, round: int) -> TraceAvailable:
        """The other clients that can be reached."""
        if self._given is None:
            reached = np.arange(population)
        else:
            reached = self._given.reachable_at(seconds, population, seed, round).all()
        return TraceAvailable(reached[reached != self._client])


def problem_of(problem: TrainingProblem, world: World, client: int, *, one_sample: bool) -> TrainingProblem:
    """The problem with the client's data, or its first sample, as in `world`."""
    if isinstance(problem, Transformed):
        return Transformed(problem_of(problem.problem, world, client, one_sample=one_sample))
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
    return replace(
        data, dataset=replace(data.dataset, train=replace(train, features=features, labels=labels))
    )
