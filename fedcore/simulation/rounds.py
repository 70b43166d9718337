"""A round of a run: its stages, its measures and its report, in two halves, between which runs may train
together.
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

import torch

from fedcore.engine.divergence import find_divergence
from fedcore.engine.round import PendingRound, TrainedRound, close_round, open_round
from fedcore.simulation.best_round import best_round
from fedcore.simulation.measuring import looks_at_each, measure
from fedcore.simulation.report import RoundReport
from fedcore.simulation.state import RunState, model_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.engine.server import RunContext
    from fedcore.engine.stages.base import RoundCost
    from fedcore.measures.base import Measured

COLUMNS = ("train_loss", "test_loss", "test_accuracy")


def begin(context: RunContext, state: RunState) -> PendingRound:
    """Play the next round up to its training. The tables of `state` change in place."""
    number = state.round + 1
    return open_round(context, state, number, each=looks_at_each(context, number))


def end(context: RunContext, pending: PendingRound, trained: TrainedRound) -> tuple[RunState, RoundReport]:
    """Play a round from its training on, and report it."""
    began = time.perf_counter()
    closed, cost = close_round(pending, trained.result)
    assert isinstance(closed, RunState)
    state = replace(
        closed, round=pending.flow.number, batched_runs=max(closed.batched_runs, trained.together)
    )
    measured = measure(context, state, cost)
    if not _finite(state.server.x) or not isfinite(measured.get("train_loss", 0.0)):  # type: ignore[arg-type]
        found = find_divergence(pending, trained.result, state.server.x)
        state = replace(state, diverged=True, divergence=found.words)
        known = {"diverged_client": found.client, "diverged_step": found.step}
        measured |= {name: value for name, value in known.items() if value is not None}
    seconds = pending.seconds + trained.seconds + time.perf_counter() - began
    report = _report(context, state, cost, measured, seconds)
    best = best_round(state.best, report, context.spec.evaluation.best_model)
    if best is not state.best:
        named = model_of(context, state).items()
        model = {name: value.detach().to("cpu", copy=True) for name, value in named}
        state = replace(state, best=best, best_model=model)
    if rule := context.spec.early_stopping:
        watched = state.early_stopping.update(rule, state.round, report.value(rule.metric))
        state = replace(state, early_stopping=watched)
    return state, replace(report, stopped=state.stopped(context.spec.rounds))


def _report(
    context: RunContext, state: RunState, cost: RoundCost, measured: Measured, seconds: float
) -> RoundReport:
    columns = {name: measured.pop(name) for name in COLUMNS if name in measured}
    return RoundReport(
        arm=context.arm,
        seed=context.seed,
        round=state.round,
        local_steps=cost.local_steps,
        bytes_up=cost.bytes_up,
        bytes_down=cost.bytes_down,
        seconds=seconds,
        extra=measured,
        diverged=state.diverged,
        **columns,  # type: ignore[arg-type]
    )


def _finite(x: Tensor) -> bool:
    # A finite sum has finite terms, and is had in one pass; the sum of large ones may be infinite
    # all the same.
    return isfinite(float(x.sum())) or bool(torch.isfinite(x).all())
