"""Properties of every compressor."""

import pkgutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedcore.compression
from fedcore.block import kind_of
from fedcore.compression import COMPRESSORS as MEMBERS
from fedcore.core import Compressor
from fedcore.engine.compressed_links import message_rngs, send
from fedcore.testing.messages import MESSAGE
from fedcore.testing.subject import Subject
from tests.builders.specifications import COMPRESSORS

DIM, CLIENTS = 20, np.array([3, 7, 11, 19, 40])
BOTH = [(kind, feedback) for kind in COMPRESSORS for feedback in (False, True)]
every_compressor = pytest.mark.parametrize(("kind", "feedback"), BOTH)


def build(kind: str, *, feedback: bool, dim: int = DIM) -> Compressor:
    member = next(member for member in MEMBERS if kind_of(member) == kind)
    level: dict[str, Any] = COMPRESSORS[kind] | {"error_feedback": feedback}
    return member.model_validate({"kind": kind, **level}).build(dim)


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def received(
    compressor: Compressor, message: Tensor, clients: np.ndarray = CLIENTS, round: int = 1, seed: int = 0
) -> Tensor:
    residual = torch.zeros_like(message)
    return send(compressor, message, residual, message_rngs(seed, "test", round, clients)).received


def test_every_module_of_the_package_is_in_the_catalogue_and_tested() -> None:
    modules = {
        f"fedcore.compression.{module.name}" for module in pkgutil.iter_modules(fedcore.compression.__path__)
    }
    own = [member for member in MEMBERS if member.__module__ != "fedcore.compression"]
    assert {member.__module__ for member in own} == modules - {"fedcore.compression.base"}
    assert {kind_of(member) for member in own} == set(COMPRESSORS)
    assert all(member.source for member in own)


@every_compressor
def test_how_many_are_compressed_at_a_time_changes_nothing(kind: str, feedback: bool) -> None:
    compressor, cohort, residual = (
        build(kind, feedback=feedback),
        normal(len(CLIENTS), DIM),
        normal(2, len(CLIENTS), DIM)[1],
    )
    whole = send(compressor, cohort, residual, message_rngs(0, "test", 1, CLIENTS))
    parts = send(compressor, cohort, residual, message_rngs(0, "test", 1, CLIENTS), chunk_elements=2 * DIM)
    assert torch.equal(parts.received, whole.received)
    assert (parts.residual is not None) is (whole.residual is not None) is feedback
    if parts.residual is not None and whole.residual is not None:
        assert torch.equal(parts.residual, whole.residual)


@every_compressor
def test_randomness_of_a_compressor_is_keyed_by_client_round_and_seed(kind: str, feedback: bool) -> None:
    compressor, cohort = build(kind, feedback=feedback), normal(1, DIM).expand(len(CLIENTS), DIM)
    chance = compressor.sample(np.random.default_rng(0), DIM) is not None
    first = received(compressor, cohort)
    assert torch.equal(received(compressor, cohort), first)
    assert all(torch.equal(row, first[0]) for row in first) is not chance
    assert torch.equal(received(compressor, cohort, round=2), first) is not chance
    assert torch.equal(received(compressor, cohort, seed=1), first) is not chance


@every_compressor
def test_received_message_and_remainder_add_up_to_the_message(kind: str, feedback: bool) -> None:
    """Error feedback telescopes: sum_t h_t + rho_T = sum_t m_t."""
    compressor = build(kind, feedback=True)
    meant, arrived = (torch.zeros(len(CLIENTS), DIM, dtype=torch.float64) for _ in range(2))
    residual: Tensor | None = torch.zeros_like(meant)
    for round, message in enumerate(normal(50, len(CLIENTS), DIM), start=1):
        sent = send(compressor, message, residual, message_rngs(0, "test", round, CLIENTS))
        meant, arrived, residual = meant + message, arrived + sent.received, sent.residual
        assert residual is not None
        torch.testing.assert_close(arrived + residual, meant, rtol=0, atol=1e-12)


@every_compressor
def test_a_compressor_passes_the_checks_with_and_without_feedback(kind: str, feedback: bool) -> None:
    member = next(member for member in MEMBERS if kind_of(member) == kind)
    for check in MESSAGE:
        check(Subject(member, "compressors", COMPRESSORS[kind] | {"error_feedback": feedback}))
