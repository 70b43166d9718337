"""Experiments that were carried out elsewhere: stored as they ended there, with all their rows.

They never run here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import curves
from fedcore.platform.store.clock import transaction_time
from fedcore.platform.store.curves import COLUMNS
from fedcore.platform.store.experiments import find
from fedcore.platform.store.idempotency import claim_key
from fedcore.platform.store.lifecycle import IMPORTED, derive_status
from fedcore.platform.store.paging import identifiers
from fedcore.platform.store.prepared import insert_into
from fedcore.platform.store.submissions import add_tags, row_of, runs_of
from fedcore.platform.store.tables import (
    Document,
    ExperimentRecord,
    IdempotencyRecord,
    RoundRecord,
    RunRecord,
)
from fedcore.simulation.report import StopReason
from fedcore.spec import ExperimentSpec

__all__ = ["FOLLOWED", "IMPORTED", "Outcome", "create", "origin"]

FOLLOWED = ("preset", "preset_version", "overrides")
"""What a provenance says of the preset that an experiment was submitted as."""

_KEY = "\u2192 import "
"""Keys of requests are ASCII, so none is taken for one of these."""


class Outcome(NamedTuple):
    """How a run ended."""

    arm: int
    seed: int
    status: Status
    diverged_round: int | None
    stop_reason: StopReason | None
    error: str | None
    started_at: datetime | None
    finished_at: datetime | None
    provenance: Document
    rows: Sequence[Document]
    """From round 1 on, without the run's id."""


def origin(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    """The provenance of an experiment where it was carried out: its own, or what was imported as
    that, which may say anything.
    """
    while isinstance(imported := provenance.get(IMPORTED), dict):
        provenance = imported["provenance"] if isinstance(imported.get("provenance"), dict) else {}
    return provenance


def create(
    session: Session,
    spec: ExperimentSpec,
    outcomes: Sequence[Outcome],
    *,
    owner: str,
    digest: str,
    provenance: Mapping[str, Any],
) -> tuple[ExperimentRecord, bool]:
    """Store an experiment with its runs, one for each arm and seed of `spec`.

    Says whether `owner` had none of this `digest` before.
    """
    at = transaction_time(session)
    (experiment_id,) = identifiers("exp", at, 1)
    first = claim_key(
        session,
        IdempotencyRecord.experiment_id,
        owner,
        _KEY + digest,
        digest,
        experiment_id,
        request="import",
    )
    if first != experiment_id:
        return find(session, first), False
    status = derive_status(Counter(outcome.status for outcome in outcomes), started=True)
    session.execute(
        insert_into(ExperimentRecord),
        _experiment(spec, experiment_id, owner, at, outcomes, status, provenance),
    )
    add_tags(session, {experiment_id: spec.tags})
    made = _runs(spec, experiment_id, at, outcomes)
    session.execute(insert_into(RunRecord), [run | {"owner": owner} for run in made])
    for run, outcome in zip(made, outcomes, strict=True):
        rows = [{"run_id": run["id"], **row} for row in outcome.rows]
        if rows:
            session.execute(insert_into(RoundRecord), rows)
            curves.append_blocks(session, run["id"], rows, COLUMNS)
    return find(session, experiment_id), True


def _experiment(
    spec: ExperimentSpec,
    experiment_id: str,
    owner: str,
    at: datetime,
    outcomes: Sequence[Outcome],
    status: Status,
    provenance: Mapping[str, Any],
) -> Document:
    return row_of(spec, experiment_id, owner, at) | {
        "spec": spec.model_dump(mode="json"),
        "status": status,
        "provenance": dict(provenance),
        "started_at": min((outcome.started_at for outcome in outcomes if outcome.started_at), default=None),
        "finished_at": max((outcome.finished_at for outcome in outcomes if outcome.finished_at), default=at),
        "error": max(
            (outcome.error for outcome in outcomes if outcome.error and outcome.status is Status.FAILED),
            default=None,
        ),
    }


def _runs(
    spec: ExperimentSpec, experiment_id: str, at: datetime, outcomes: Sequence[Outcome]
) -> list[Document]:
    """In the order of the outcomes: with that, their ids sort as those of the runs they were
    exported from.
    """
    arms = spec.arms()
    planned = {
        (run["arm"], run["seed"]): run for run in runs_of(spec, arms, experiment_id, at, [0] * len(arms))
    }
    ids = sorted(run["id"] for run in planned.values())
    return [
        planned[outcome.arm, outcome.seed]
        | {
            "id": id,
            "status": outcome.status,
            "done": len(outcome.rows),
            "seconds": sum(row["seconds"] for row in outcome.rows),
            "diverged_round": outcome.diverged_round,
            "stop_reason": outcome.stop_reason,
            "error": outcome.error,
            "started_at": outcome.started_at,
            "finished_at": outcome.finished_at or at,
            "provenance": outcome.provenance,
        }
        for id, outcome in zip(ids, outcomes, strict=True)
    ]
