"""Local work: how many steps with which batch size each client takes, and which clients straggle.

Blocks `systems.epochs`, `systems.steps`, `systems.batch_size` and `systems.stragglers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedcore.assurance import Assurance, Assurances
from fedcore.block import Block, NonNegative, check_bounds
from fedcore.errors import SpecificationError
from fedcore.families import Family
from fedcore.lazy import np, random

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedcore.spec.local import LocalSolver
    from fedcore.spec.systems import Systems

    Ids = NDArray[np.int64]

MAX_LOCAL_STEPS = 1_000_000
Count = Annotated[int, Field(ge=1, le=MAX_LOCAL_STEPS)]
BatchSize = Count | Literal["full"]


class WorkDistribution(Block):
    """Epochs, steps or batch sizes of the clients in each round."""

    assures: ClassVar[Assurances] = frozenset({Assurance.OWN_DATA, Assurance.NOISY_GRADIENTS})
    """Statements about privacy; a class that overrides a method declares its own."""

    if TYPE_CHECKING:
        kind: str

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        """The number of a client that holds `samples` samples, in a round counted from 1."""
        raise NotImplementedError

    def fixed(self, clients: int) -> list[int] | None:
        """The number of each client, if it is the same in every round; else None."""
        return None

    def check(self, clients: int, rounds: int, pointer: str) -> None:
        """Raise SpecificationError if the block does not fit N = `clients` and `rounds`."""


class Constant(WorkDistribution):
    """One value for every client in every round."""

    example = {"value": 2}
    assures = WorkDistribution.assures

    kind: Literal["constant"] = "constant"
    value: Count
    """The value."""

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        return self.value

    def fixed(self, clients: int) -> list[int] | None:
        return [self.value] * clients


class PerClient(WorkDistribution):
    """One number per client, the same in every round."""

    example = {"values": [50, 30]}
    assures = WorkDistribution.assures

    kind: Literal["per_client"] = "per_client"
    values: Annotated[tuple[Count, ...], Field(fail_fast=True, min_length=1, max_length=1_000_000)]
    """Values by client id."""

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        return self.values[client]

    def fixed(self, clients: int) -> list[int] | None:
        return list(self.values)

    def check(self, clients: int, rounds: int, pointer: str) -> None:
        if len(self.values) != clients:
            raise SpecificationError(
                f"{pointer}/values",
                f"must have one value for each of the {clients} clients, not {len(self.values)}",
            )


class UniformDraw(WorkDistribution):
    """Drawn for each client in each round, uniformly from the integers low..high, inclusive."""

    example = {"low": 2, "high": 5}
    assures = WorkDistribution.assures

    kind: Literal["uniform"] = "uniform"
    low: Count
    """Lower bound."""
    high: Count
    """Upper bound."""

    _ordered = model_validator(mode="after")(check_bounds)

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        return int(
            random.generator(seed, purpose, round, client).integers(self.low, self.high, endpoint=True)
        )


class UniformBatch(WorkDistribution):
    """Drawn for each client in each round, uniformly from the integers low..high, inclusive."""

    example = {"low": 10, "high": "samples"}
    assures = WorkDistribution.assures

    kind: Literal["uniform"] = "uniform"
    low: Count
    """Lower bound."""
    high: Count | Literal["samples"]
    """Upper bound, limited to the client's samples; `samples` is n_i itself (FedAWARE, Hybrid+)."""

    _ordered = model_validator(mode="after")(check_bounds)

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        most = samples if self.high == "samples" else self.high
        rng = random.generator(seed, purpose, round, client)
        return int(rng.integers(min(self.low, most), most, endpoint=True))


class NormalDraw(WorkDistribution):
    """Drawn for each client in each round from a normal distribution, rounded and clipped to
    low..high.
    """

    example = {"mean": 16.0, "std": 4.0, "low": 4, "high": 32}
    assures = WorkDistribution.assures

    kind: Literal["normal"] = "normal"
    mean: Annotated[float, Field(gt=0, le=1e6)]
    """Mean before rounding and clipping."""
    std: NonNegative
    """Standard deviation before rounding and clipping."""
    low: Count = 1
    """Lower bound of clipping."""
    high: Count = 1_000_000
    """Upper bound of clipping."""

    _ordered = model_validator(mode="after")(check_bounds)

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        value = random.generator(seed, purpose, round, client).normal(self.mean, self.std)
        return int(np.clip(np.rint(value), self.low, self.high))


class WorkTrace(WorkDistribution):
    """Given values, one row per round with one entry per client."""

    example = {"rounds": [[5, 2], [1, 7]]}
    assures = WorkDistribution.assures

    kind: Literal["trace"] = "trace"
    rounds: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(fail_fast=True)], ...],
        Field(fail_fast=True, min_length=1, max_length=100_000),
    ]
    """Values by round and client id."""

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        return self.rounds[round - 1][client]

    def check(self, clients: int, rounds: int, pointer: str) -> None:
        if len(self.rounds) < rounds:
            raise SpecificationError(
                f"{pointer}/rounds",
                f"must have a row for each of the {rounds} rounds, not {len(self.rounds)}",
            )
        wrong = next((row for row in self.rounds if len(row) != clients), None)
        if wrong is not None:
            raise SpecificationError(
                f"{pointer}/rounds",
                f"each row must have an entry for each of the {clients} clients, not {len(wrong)}",
            )


STEP_DISTRIBUTIONS = Family(
    "work",
    WorkDistribution,
    (
        Constant,
        PerClient,
        UniformDraw,
        NormalDraw,
        WorkTrace,
    ),
)
BATCH_DISTRIBUTIONS = Family(
    "batch_sizes",
    WorkDistribution,
    (
        Constant,
        PerClient,
        UniformBatch,
        NormalDraw,
        WorkTrace,
    ),
)

AnyWork = Annotated[WorkDistribution, STEP_DISTRIBUTIONS]
AnyBatch = Annotated[WorkDistribution, BATCH_DISTRIBUTIONS]


class Stragglers(Block):
    """Clients that do not finish: each does a number of epochs or steps drawn from U{1..E}
    (FedProx, Section 5.2).
    """

    fraction: Annotated[float, Field(ge=0, le=1)]
    """Fraction of the cohort; round(K (1 - fraction)) clients finish."""
    policy: Literal["drop", "accept_partial"]
    """`drop` excludes stragglers from aggregation (FedAvg); `accept_partial` includes their partial
    work (FedProx).
    """
    unit: Literal["epochs", "steps"] | None = None
    """Unit of the draw: `epochs` out of E, or `steps` out of all steps of E epochs, as in FedProx
    for E = 1 (default: the unit of the local work in `local` or `systems`).
    """


@dataclass(frozen=True, slots=True)
class Work:
    """How much a client does in a round."""

    steps: int
    batch_size: int
    lengths: tuple[int, ...] | None = None
    """Samples of each step, where they differ in another way than that epochs end with fewer."""


def steps_of(epochs: int, samples: int, batch_size: int) -> int:
    """epochs * ceil(n / B): the short last batch of an epoch is a step."""
    return epochs * -(-samples // batch_size)


def pool_work(work: Sequence[Work], samples: Ids, total: int, *, whole: bool) -> Work:
    """All steps of clients that hold `samples` [M], as the work of one client who holds the `total`: each of
    as many samples, first those of all first epochs, then of all second ones; of the `whole` set if batches
    are full.
    """
    steps = sum(item.steps for item in work)
    if whole:
        return Work(steps, total)
    epochs, lengths = [], []
    for item, held in zip(work, samples.tolist(), strict=True):
        per_epoch = steps_of(1, held, item.batch_size)
        epoch, step = np.divmod(np.arange(item.steps), per_epoch)
        epochs.append(epoch)
        rest = held - step * item.batch_size
        lengths.append(np.minimum(item.batch_size, rest))
    order = np.argsort(np.concatenate(epochs), kind="stable")
    of_steps = np.concatenate(lengths)[order]
    if of_steps.min() == total:
        return Work(steps, total)
    return Work(steps, int(of_steps.max()), tuple(of_steps.tolist()))


def plan_work(
    local: LocalSolver,
    systems: Systems,
    sizes: Ids,
    clients: Ids,
    seed: int,
    round: int,
) -> tuple[list[Work], NDArray[np.bool_]]:
    """Each cohort member's work, and whether it reaches the server, [M] each.

    `sizes` [N] are all clients' sample counts. Every draw is keyed by (seed, round, client), so it
    does not depend on the algorithm or on the rest of the cohort.
    """
    if (
        systems.stragglers is None
        and systems.epochs is None
        and systems.steps is None
        and systems.batch_size is None
    ):
        return _alike(local, sizes[clients]), np.ones(len(clients), bool)
    straggles = _stragglers(systems.stragglers, len(clients), seed, round)
    work = [
        _work_of(local, systems, int(client), int(sizes[client]), seed, round, slow=bool(slow))
        for client, slow in zip(clients, straggles, strict=True)
    ]
    dropped = (
        straggles if systems.stragglers and systems.stragglers.policy == "drop" else np.zeros_like(straggles)
    )
    return work, ~dropped


def _alike(local: LocalSolver, samples: Ids) -> list[Work]:
    """The work of clients with `samples` [M] of which nothing is drawn."""
    batches = samples if local.batch_size == "full" else np.minimum(local.batch_size, samples)
    steps = (
        np.full(len(samples), local.steps) if local.epochs is None else local.epochs * -(-samples // batches)
    )
    return list(map(Work, steps.tolist(), batches.tolist()))


def _stragglers(spec: Stragglers | None, size: int, seed: int, round: int) -> NDArray[np.bool_]:
    finishing = size if spec is None else _finishing(size, spec)
    order = random.generator(seed, "stragglers", round).permutation(size)
    return order >= finishing


def _finishing(size: int, spec: Stragglers) -> int:
    return round_half_even(size * (1 - spec.fraction))


def least_cohort(spec: Stragglers) -> int:
    """The size from which on a cohort has clients that finish; some must be able to (fraction
    < 1).
    """
    size = max(1, int(0.5 / (1 - spec.fraction)))
    while _finishing(size, spec) < 1:
        size += 1
    return size


def round_half_even(value: float) -> int:
    """Python's rounding, named because `round` is a word of the field here."""
    return int(np.rint(value))


def _work_of(
    local: LocalSolver, systems: Systems, client: int, samples: int, seed: int, round: int, *, slow: bool
) -> Work:
    batch_size = _batch_size(local.batch_size, systems.batch_size, samples, seed, round, client)
    epochs = _amount(systems.epochs, local.epochs, "epochs", seed, round, client)
    steps = _amount(systems.steps, local.steps, "steps", seed, round, client)
    if slow:
        assert systems.stragglers is not None
        if systems.stragglers.unit == "steps" and epochs is not None:
            steps, epochs = steps_of(epochs, samples, batch_size), None
        lot = random.generator(seed, "straggler work", round, client)
        epochs, steps = (
            None if full is None else int(lot.integers(1, full, endpoint=True)) for full in (epochs, steps)
        )
    if epochs is not None:
        return Work(steps_of(epochs, samples, batch_size), batch_size)
    assert steps is not None
    return Work(steps, batch_size)


def _batch_size(
    fixed: BatchSize, drawn: WorkDistribution | None, samples: int, seed: int, round: int, client: int
) -> int:
    size = fixed if drawn is None else drawn.draw("batch size", seed, round, client, samples)
    return samples if size == "full" else min(size, samples)


def _amount(
    drawn: WorkDistribution | None, fixed: int | None, purpose: str, seed: int, round: int, client: int
) -> int | None:
    return fixed if drawn is None else drawn.draw(purpose, seed, round, client, 0)
