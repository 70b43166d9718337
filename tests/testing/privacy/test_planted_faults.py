"""Faults that a change of one line may bring; each is found by the audit of a specification it breaks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore.engine import client_by_client
from fedcore.engine.assignment import Job
from fedcore.engine.server import RESIDUAL
from fedcore.engine.stages import prepare, select
from fedcore.engine.stages.aggregate import Move
from fedcore.engine.stages.base import Flow, RoundState
from fedcore.engine.stages.compress import CompressChanges
from fedcore.engine.stages.privatise import PrivatiseChanges
from fedcore.engine.stages.remember import Remember
from fedcore.privacy import client_level
from fedcore.privacy.client_level import NOISE, Clipped, ClippingUpdate, PrivateMean, standard_normal
from fedcore.privacy.local import NoisyChanges
from fedcore.privacy.tree import NODE_NOISE, TreeMean
from fedcore.systems import selection
from fedcore.systems.participation import Uniform
from fedcore.systems.work import plan_work
from tests.builders.specifications import Document
from tests.testing.privacy.test_coupled import (
    BY_NORM,
    FED_BACK,
    QSGD,
    TOP_K,
    audit,
    private,
    spec_of,
    taking_part,
    what,
)

Planting = tuple[Any, str, Callable[..., Any]]
"""An object, the name of one of its functions, and the faulty one."""


def norms_without_biases() -> Planting:
    """Changes are clipped by the norm of their weights."""
    clip = client_level.clip

    def faulty(deltas: Tensor, norm: Tensor | float) -> Clipped:
        weights = clip(deltas[:, :-10], norm)
        return clip(deltas, torch.inf)._replace(norms=weights.norms, factors=weights.factors)

    return client_level, "clip", faulty


def count_that_is_not_centred() -> Planting:
    """Adaptive clipping counts 0 or 1 instead of -1/2 or 1/2."""

    def faulty(self: ClippingUpdate, norm: Tensor, seen: Clipped, noise: Tensor) -> Tensor:
        count = (seen.norms <= norm).to(norm).sum()
        share = (count + self.count_noise * noise) / self.expected
        return norm * torch.exp(-self.lr * (share - self.quantile))

    return ClippingUpdate, "next", faulty


def nodes_without_level() -> Planting:
    """Nodes of all levels of the tree share their noise."""

    def faulty(self: TreeMean, like: Tensor, _: int, number: int) -> Tensor:
        return standard_normal(like, self.seed, NODE_NOISE, number)

    return TreeMean, "_node", faulty


def noise_that_cancels() -> Planting:
    """A round takes off the noise of the round before, so that the sum of rounds has that of one."""

    def faulty(self: PrivateMean, like: Tensor) -> Tensor:
        now, before = (standard_normal(like, self.seed, NOISE, self.round - back) for back in (0, 1))
        return self.noise_multiplier * (now - before if self.round > 1 else now)

    return PrivateMean, "noise", faulty


def step_over_coefficients() -> Planting:
    """The server divides its step by the sum of the factors of clipping, which have no noise."""
    play = Move.play

    def faulty(self: Move, state: RoundState, flow: Flow) -> Any:
        combined = flow.aggregate
        assert combined is not None
        total = combined.coefficients.sum().clamp(min=1e-3)
        shorter = replace(combined, direction=combined.direction / total)
        return play(self, state, replace(flow, aggregate=shorter))

    return Move, "play", faulty


def raw_norm_in_the_optimiser() -> Planting:
    """Checkpoints have the norm of the clipped changes before noise."""
    play = Remember.play

    def faulty(self: Remember, state: RoundState, flow: Flow) -> Any:
        state, flow = play(self, state, flow)
        assert flow.deltas is not None
        assert flow.aggregate is not None
        norm = (flow.aggregate.coefficients[:, None] * flow.deltas).nan_to_num().norm()
        optimiser = {**state.server.optimiser, "norm": norm[None]}
        return replace(state, server=replace(state.server, optimiser=optimiser)), flow

    return Remember, "play", faulty


def as_long_as_the_longest() -> Planting:
    """All of a cohort take as many steps as the client with the most samples."""

    def faulty(*given: Any) -> Any:
        work, arrives = plan_work(*given)
        most = max((each.steps for each in work), default=0)
        return [replace(each, steps=most) for each in work], arrives

    return selection, "plan_work", faulty


def drawn_by_size() -> Planting:
    """Clients with more samples are drawn more often."""

    def faulty(_self: Uniform, share: Any, _among: Any, size: int, rng: np.random.Generator) -> Any:
        return rng.choice(len(share), size, replace=False, p=share)

    return Uniform, "sample", faulty


def clipped_without_noise() -> Planting:
    """Clients send their clipped changes."""

    def faulty(self: NoisyChanges, changes: Tensor, *_: Any) -> Tensor:
        clipped = client_level.clip(changes, self.clip_norm)
        return clipped.factors[:, None] * clipped.deltas

    return NoisyChanges, "privatise", faulty


def aggregated_without_noise() -> Planting:
    """Noisy changes are remembered, and the others aggregated."""
    play = PrivatiseChanges.play

    def faulty(self: PrivatiseChanges, state: RoundState, flow: Flow) -> Any:
        state, later = play(self, state, flow)
        return state, replace(later, change=flow.change)

    return PrivatiseChanges, "play", faulty


def entries_of_the_change_without_noise() -> Planting:
    """The largest entries are those of the change, and have the values of the noisy one."""
    play = CompressChanges.play

    def faulty(self: CompressChanges, state: RoundState, flow: Flow) -> Any:
        _, exact = play(self, state, replace(flow, change=flow.deltas))
        assert exact.change is not None
        assert flow.change is not None
        return state, replace(exact, change=flow.change.where(exact.change != 0, 0.0))

    return CompressChanges, "play", faulty


def residual_of_the_change_without_noise() -> Planting:
    """Error feedback keeps what was left out of the change, without its noise."""
    play = CompressChanges.play

    def faulty(self: CompressChanges, state: RoundState, flow: Flow) -> Any:
        state, later = play(self, state, flow)
        assert flow.change is not None
        assert flow.deltas is not None
        residual = later.kept[RESIDUAL] + flow.deltas - flow.change
        return state, replace(later, kept={**later.kept, RESIDUAL: residual})

    return CompressChanges, "play", faulty


def scale_of_the_change_without_noise() -> Planting:
    """Messages are scaled to the norm of the change."""
    play = CompressChanges.play

    def faulty(self: CompressChanges, state: RoundState, flow: Flow) -> Any:
        state, later = play(self, state, flow)
        assert flow.change is not None
        assert flow.deltas is not None
        assert later.change is not None
        scale = flow.deltas.norm(dim=1) / flow.change.norm(dim=1)
        return state, replace(later, change=scale[:, None] * later.change)

    return CompressChanges, "play", faulty


def norms_without_noise() -> Planting:
    """The scheme observes the norms of changes without noise."""
    play = select.Learn.play

    def faulty(self: select.Learn, state: RoundState, flow: Flow) -> Any:
        state, later = play(self, state, replace(flow, change=flow.deltas))
        return state, replace(later, change=flow.change)

    return select.Learn, "play", faulty


def model_without_noise() -> Planting:
    """The server adds the changes without noise to its model, too."""
    play = Move.play

    def faulty(self: Move, state: RoundState, flow: Flow) -> Any:
        state, flow = play(self, state, flow)
        assert flow.deltas is not None
        total = flow.deltas.nan_to_num().clamp(-1, 1).sum(0)
        return replace(state, server=replace(state.server, broadcast=state.server.broadcast + total)), flow

    return Move, "play", faulty


def noise_of_the_first_step() -> Planting:
    """An engine adds the noise that is drawn for the first step in all of them."""
    gradient = client_by_client._gradient_of_step

    def faulty(job: Job, row: int, *rest: Any) -> Tensor:
        noise = tuple(np.repeat(drawn[:1], len(drawn), axis=0) for drawn in job.work.noise or ())
        return gradient(replace(job, work=replace(job.work, noise=noise)), row, *rest)

    return client_by_client, "_gradient_of_step", faulty


def batches_with_replacement() -> Planting:
    """The mini-batches of an epoch are drawn one by one."""

    def faulty(seed: int, round: int, _: Any, samples: Any, work: Any, _views: int) -> Any:
        rng = np.random.default_rng([seed, round])
        members = zip(samples, work, strict=True)
        return tuple(rng.integers(count, size=(each.steps, each.batch_size)) for count, each in members)

    return prepare, "augmented_batches", faulty


FULL, BERNOULLI = taking_part("full"), taking_part("bernoulli", probability=0.5)
UNIFORM = taking_part("uniform", clients_per_round=2)
DP_FEDAVG, DP_FTRL, LOCAL, DP_SGD = map(private, ("client_level", "dp_ftrl", "local", "example_level"))


@pytest.mark.parametrize(
    ("planting", "mechanism", "participation", "told"),
    [
        (norms_without_biases, DP_FTRL, FULL, "direction moves by 1.05"),
        (
            count_that_is_not_centred,
            private("client_level", adaptive_clipping={}),
            BERNOULLI,
            "clip_norm moves by 2 times",
        ),
        (nodes_without_level, DP_FTRL, FULL, "direction has 0 times its declared deviation"),
        (noise_that_cancels, DP_FEDAVG, UNIFORM, "correlation of -0.71"),
        (step_over_coefficients, DP_FEDAVG, FULL, "differs: broadcast"),
        (raw_norm_in_the_optimiser, DP_FTRL, FULL, "differs: optimiser.norm"),
        (as_long_as_the_longest, DP_FEDAVG, BERNOULLI, "differs: changes of other clients"),
        (drawn_by_size, DP_FEDAVG, UNIFORM, "other clients take part"),
        (clipped_without_noise, LOCAL, FULL, "message has 0 times its declared deviation"),
        (aggregated_without_noise, LOCAL, FULL, "message of client"),
        (model_without_noise, LOCAL, FULL, "differs: broadcast"),
        (entries_of_the_change_without_noise, {**LOCAL, **TOP_K}, FULL, "message of client"),
        (residual_of_the_change_without_noise, {**LOCAL, **FED_BACK}, FULL, "message of client"),
        (scale_of_the_change_without_noise, {**LOCAL, **QSGD}, FULL, "message of client"),
        (norms_without_noise, LOCAL, BY_NORM, "differs: own.select.update_norm"),
        (noise_of_the_first_step, DP_SGD, FULL, "gradients that have other noise"),
        (batches_with_replacement, DP_SGD, FULL, "a sample is in 3 gradients"),
    ],
)
def test_a_fault_of_one_line_is_found(
    planting: Callable[[], Planting],
    mechanism: Document,
    participation: Document,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = spec_of(mechanism, participation)
    monkeypatch.setattr(*planting())
    assert told in what(audit(spec, slice(5)))
