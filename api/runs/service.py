"""Runs as answered."""

import json
from typing import Literal

from fedcore.platform.provenance import BEST_MODEL, best_model_key
from fedcore.platform.store import Status
from fedcore.platform.store.tables import RunRecord
from fedq.schemas import BestModel, Run


def run_answer(record: RunRecord, waits_for: str | None = None) -> Run:
    """Return a run and what it waits for; the worker is named only while it holds the run."""
    best = None if stored_model(record, "best") is None else record.provenance[BEST_MODEL]
    return Run(
        id=record.id,
        experiment_id=record.experiment_id,
        arm=record.arm,
        arm_name=record.arm_name,
        settings=record.settings,
        seed=record.seed,
        status=record.status,
        diverged=record.diverged_round is not None,
        diverged_round=record.diverged_round,
        warning=None if record.warning is None else record.warning.detail,
        stop_reason=record.stop_reason,
        rounds_done=record.done,
        rounds_total=record.rounds,
        next_rung=record.until,
        waiting_since=record.held_at,
        queue=record.queue,
        priority=record.priority,
        worker=record.worker if record.status is Status.RUNNING else None,
        attempts=record.attempts,
        memory_bytes=record.memory_bytes,
        packages=json.loads(record.packages or "[]"),
        waits_for=waits_for,
        next_try_at=record.not_before if record.status is Status.QUEUED else None,
        error=record.error,
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        has_model=record.model is not None,
        best_model=None if best is None else BestModel.model_validate(best),
        has_checkpoint=record.checkpoint is not None,
        notes=record.notes,
        provenance=record.provenance,
    )


def stored_model(record: RunRecord, which: Literal["final", "best"]) -> str | None:
    """Return the storage key of a model of a run; None if there is none."""
    if record.model is None or which == "final":
        return record.model
    return best_model_key(record.model, record.provenance)
