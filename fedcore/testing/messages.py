"""Checks of compressors and of server optimisers given as a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcore.core import Compressor
from fedcore.engine.compressed_links import message_rngs, send
from fedcore.random import generator
from fedcore.testing import runs, trials
from fedcore.testing.finding import require
from fedcore.testing.subject import EXACT, SAMPLED, Subject

DIM, SEED = 100, 0
CLIENTS = np.array([3, 7, 11, 19, 40])


def a_message_is_the_same_alone_and_in_a_cohort(subject: Subject) -> None:
    """A client of a cohort sends what it would send alone, in the precision of the message."""
    compressor = _built(subject)
    for dtype in (torch.float32, torch.float64):
        cohort = _normal(len(CLIENTS), DIM).to(dtype)
        whole = _received(compressor, cohort)
        alone = torch.stack([_received(compressor, row, CLIENTS[i : i + 1]) for i, row in enumerate(cohort)])
        require(
            whole.shape == cohort.shape and whole.dtype == dtype,
            f"messages {list(cohort.shape)} of {dtype}",
            f"{list(whole.shape)} of {whole.dtype}",
            "a tensor made without the type of `message`; use message.new_zeros(...)",
            compressor.compress,
        )
        require(
            torch.allclose(whole, alone, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0),
            "a client to send the same alone and in a cohort",
            f"a difference of {float((whole - alone).abs().max()):.3g}",
            "a reduction over all axes; reduce over dim=-1",
            compressor.compress,
        )


def messages_are_keyed(subject: Subject) -> None:
    """Chance comes from `sample` alone: the same key gives the same message, in any order."""
    compressor, cohort = _built(subject), _normal(len(CLIENTS), DIM)
    order = np.array([4, 0, 3, 1, 2])
    first, second = _received(compressor, cohort), _received(_built(subject), cohort[order], CLIENTS[order])
    require(
        torch.equal(first[order], second),
        "the same messages whatever their order",
        f"a difference of {float((first[order] - second).abs().max()):.3g}",
        "chance outside `sample`, or state on `self`",
        compressor.compress,
    )


def zeros_and_undefined_numbers_arrive_as_such(subject: Subject) -> None:
    """A message of zeros arrives as zeros; one that is not a number does not arrive as one."""
    compressor = _built(subject)
    zeros = torch.zeros(len(CLIENTS), DIM, dtype=torch.float64)
    require(
        torch.equal(_received(compressor, zeros), zeros),
        "a message of zeros to arrive as zeros",
        "something else",
        "a division by the norm of the message",
        compressor.compress,
    )
    require(
        not torch.isfinite(_received(compressor, zeros + torch.nan)).all(-1).any(),
        "a message of NaN to arrive with NaN, so that divergence is seen",
        "finite numbers",
        "a comparison or a sign hides NaN",
        compressor.compress,
    )


def error_feedback_loses_nothing(subject: Subject) -> None:
    """A compressor that sends the rest later loses nothing: what arrived and what is kept back add up to
    what was meant.
    """
    compressor = _built(subject)
    if not compressor.telescopes():
        return
    meant, arrived = (torch.zeros(len(CLIENTS), DIM, dtype=torch.float64) for _ in range(2))
    residual: Tensor | None = torch.zeros_like(meant)
    for round in range(1, 31):
        message = _normal(len(CLIENTS), DIM, seed=round)
        sent = send(compressor, message, residual, message_rngs(SEED, "check", round, CLIENTS))
        meant, arrived, residual = meant + message, arrived + sent.received, sent.residual
    assert residual is not None
    require(
        torch.allclose(arrived + residual, meant, atol=1e-9)
        and float(residual.norm()) < 1e3 * float(_normal(len(CLIENTS), DIM).norm()),
        "a residual that stays bounded",
        f"a residual of norm {float(residual.norm()):.3g} after 30 rounds",
        "a compressor that scales the message up, as unbiased ones do; error feedback needs a contraction",
        compressor.compress,
    )


def messages_have_whole_bytes(subject: Subject) -> None:
    """A message takes a whole number of bytes, more than zero and at most as many as the dense one."""
    for dim in (1, 2, 3, 7, 8, 9, DIM, 1_000):
        if subject.spec().misfit(dim) is not None:
            continue
        compressor = subject.spec().build(dim)
        for word in (4, 8):
            taken = compressor.message_bytes(dim, word)
            require(
                isinstance(taken, int) and 0 < taken <= dim * word,
                f"whole bytes from 1 to {dim * word} for {dim} numbers of {word} bytes",
                f"{taken!r}",
                "bits that are not rounded up to bytes, or indices that cost more than they save",
                compressor.message_bytes,
            )


def a_single_number_arrives(subject: Subject) -> None:
    """A message of one number arrives as it is, without error feedback; rounded at random, within a
    factor of two.
    """
    if subject.spec().misfit(1) is not None:
        return
    compressor = subject.spec().build(1)
    if compressor.error_feedback:
        return
    for dtype in (torch.float32, torch.float64):
        message = torch.tensor([[0.3], [-2.0], [0.0], [1e-30], [7e18]], dtype=dtype)
        received = _received(compressor, message)
        rounds = compressor.sample(generator(SEED, "check"), 1) is not None
        require(
            torch.allclose(received, message, rtol=1e-15, atol=0)
            or (rounds and bool(((received - 1.25 * message).abs() <= 0.75 * message.abs()).all())),
            "a message of a single number to arrive as it is",
            f"{received.flatten().tolist()} instead of {message.flatten().tolist()}",
            "a level below the largest entry, or a norm that underflows",
            compressor.compress,
        )


def the_state_has_the_declared_names(subject: Subject) -> None:
    """`step` gives a change [D], and the state that `start` names."""
    optimiser = subject.spec().build()
    if optimiser is None:
        return
    direction = _normal(1, DIM)[0]
    state = {name: torch.full_like(direction, value) for name, value in optimiser.start().items()}
    move, after = optimiser.step(direction, state)
    shapes = {name: list(value.shape) for name, value in after.items()}
    require(
        list(move.shape) == [DIM] and shapes == {name: [DIM] for name in state},
        f"a change [{DIM}] and the state {sorted(state)}, [{DIM}] each",
        f"a change {list(move.shape)} and the state {shapes}",
        "`start` does not name a vector that `step` returns",
        optimiser.step,
    )


def _built(subject: Subject) -> Compressor:
    compressor: Compressor = subject.spec().build(DIM)
    return compressor


def _received(compressor: Compressor, message: Tensor, clients: Any = CLIENTS) -> Tensor:
    residual = torch.zeros_like(message)
    return send(compressor, message, residual, message_rngs(SEED, "check", 1, clients)).received


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _on(subject: Subject, base: dict[str, Any]) -> runs.Make:
    path = "server" if subject.family == "server_optimisers" else "compression.uplink"
    return lambda **changes: subject.experiment(base, path, **changes)


_IN_RUNS = trials.checks_in_runs(lambda subject: [_on(subject, SAMPLED)])
_ON_QUADRATICS = trials.checks_on_quadratics(lambda subject: _on(subject, EXACT))
_TRIED = (
    _IN_RUNS.randomness,
    _ON_QUADRATICS.descent,
    _IN_RUNS.engines,
    _IN_RUNS.resumption,
    _ON_QUADRATICS.memory,
)
MESSAGE = (
    a_message_is_the_same_alone_and_in_a_cohort,
    messages_are_keyed,
    zeros_and_undefined_numbers_arrive_as_such,
    error_feedback_loses_nothing,
    messages_have_whole_bytes,
    a_single_number_arrives,
)
COMPRESSOR = (*MESSAGE, *_TRIED)
SERVER_OPTIMISER = (the_state_has_the_declared_names, *_TRIED)
