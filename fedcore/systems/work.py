"""Systems heterogeneity: how many steps, on which batch size, each client of a cohort does, and who
straggles.
"""

import numpy as np
from numpy.typing import NDArray

from fedcore.data.plan import Work, steps_of
from fedcore.random import generator
from fedcore.spec.local import BatchSize, LocalSolver
from fedcore.spec.systems import (
    AnyBatch,
    AnyWork,
    Constant,
    NormalDraw,
    PerClient,
    Stragglers,
    Systems,
    UniformBatch,
    UniformDraw,
    WorkTrace,
)

Ids = NDArray[np.int64]


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
    order = generator(seed, "stragglers", round).permutation(size)
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
        lot = generator(seed, "straggler work", round, client)
        epochs, steps = (
            None if full is None else int(lot.integers(1, full, endpoint=True)) for full in (epochs, steps)
        )
    if epochs is not None:
        return Work(steps_of(epochs, samples, batch_size), batch_size)
    assert steps is not None
    return Work(steps, batch_size)


def _batch_size(
    fixed: BatchSize, drawn: AnyBatch | None, samples: int, seed: int, round: int, client: int
) -> int:
    match drawn:
        case None:
            pass
        case UniformBatch(low=low, high=high):
            most = samples if high == "samples" else high
            fixed = int(
                generator(seed, "batch size", round, client).integers(min(low, most), most, endpoint=True)
            )
        case _:
            fixed = _draw(drawn, "batch size", seed, round, client)
    return samples if fixed == "full" else min(fixed, samples)


def _amount(
    drawn: AnyWork | None, fixed: int | None, purpose: str, seed: int, round: int, client: int
) -> int | None:
    return fixed if drawn is None else _draw(drawn, purpose, seed, round, client)


def _draw(work: AnyWork, purpose: str, seed: int, round: int, client: int) -> int:
    match work:
        case Constant():
            return work.value
        case PerClient():
            return work.values[client]
        case WorkTrace():
            return work.rounds[round - 1][client]
        case UniformDraw():
            return int(generator(seed, purpose, round, client).integers(work.low, work.high, endpoint=True))
        case NormalDraw():
            value = generator(seed, purpose, round, client).normal(work.mean, work.std)
            return int(np.clip(np.rint(value), work.low, work.high))
