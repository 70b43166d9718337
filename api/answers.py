"""Records of the store as answers."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from api.schemas import (
    ArmArrival,
    ArmSummary,
    ClientSizes,
    Dataset,
    Delivery,
    Experiment,
    ExperimentSummary,
    Key,
    NewWebhook,
    Progress,
    QueueDepth,
    Run,
    SearchPage,
    Webhook,
)
from fedcore.access import prefix_of
from fedcore.spec.digest import specification_sha256
from fedcore.spec.uploaded import Content
from fedcore.status import DeliveryStatus
from fedcore.store import Session, Status, progress, search, workers
from fedcore.store.progress import ArmPoint, Depth, Overview
from fedcore.store.progress import Progress as Rounds
from fedcore.store.tables import (
    ArrivalRecord,
    DatasetRecord,
    DeliveryRecord,
    ExperimentRecord,
    KeyRecord,
    RunRecord,
    SearchRecord,
    WebhookRecord,
)

ARRIVALS = 10_000
"""Of a search, on a page, at most."""


def experiment_answer(session: Session, record: ExperimentRecord, overview: Overview | None = None) -> Experiment:
    """An experiment with its progress and arms: those of `overview`, where that is known."""
    rounds, points = overview or progress.overview(session, record.id)
    last = search.last(session, record.id) if record.spec.get("search") else {}
    summary = summary_answer(record, rounds)
    arms = [_arm(point, last.get(point.arm)) for point in points]
    return Experiment(**_fields(summary), arms=arms, specification=record.spec, provenance=made_from(record))


def made_from(record: ExperimentRecord) -> dict[str, Any]:
    """An experiment's provenance, and the digest of its specification as it is now."""
    return record.provenance | {"specification_sha256": specification_sha256(record.spec)}


def _arm(point: ArmPoint, last: search.Standing | None) -> ArmSummary:
    judged = {} if last is None else {"rung": last.round, "value": last.value, "verdict": last.verdict}
    return ArmSummary(index=point.arm, name=point.name, settings=point.settings, **judged)


def summary_answer(record: ExperimentRecord, rounds: Rounds) -> ExperimentSummary:
    """An experiment as listed."""
    return ExperimentSummary(
        id=record.id,
        name=record.name,
        description=record.description,
        tags=record.tags,
        status=record.status,
        priority=record.priority,
        owner=record.owner,
        created_at=record.created_at,
        updated_at=record.updated_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        error=record.error,
        progress=_progress(rounds),
    )


def run_answer(record: RunRecord, waits_for: str | None = None) -> Run:
    """A run, and what it waits for beside its turn; the worker is named only while it has the run."""
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
        waits_for=waits_for,
        next_try_at=record.not_before if record.status is Status.QUEUED else None,
        error=record.error,
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        has_model=record.model is not None,
        has_checkpoint=record.checkpoint is not None,
        provenance=record.provenance,
    )


def arrival_answers(session: Session, search_of: SearchRecord, arrivals: Sequence[ArrivalRecord]) -> list[ArmArrival]:
    """Arms that came to rungs of this search."""
    names = search.names(session, search_of.experiment_id, [arrival.arm for arrival in arrivals])
    return [
        ArmArrival(
            sequence=arrival.sequence,
            arm=arrival.arm,
            name=names[arrival.arm],
            rung=arrival.rung,
            round=search_of.rungs[arrival.rung],
            value=arrival.value,
            arrived_at=arrival.arrived_at,
            verdict=arrival.verdict,
            rank=arrival.rank,
            field=arrival.field,
            places=arrival.places,
            decided_by=arrival.decided_by,
            decided_at=arrival.decided_at,
        )
        for arrival in arrivals
    ]


def search_answer(session: Session, record: SearchRecord, after: int = 0, limit: int = ARRIVALS) -> SearchPage:
    """A search, with `limit` arrivals at most after the sequence `after`."""
    items = arrival_answers(session, record, search.arrivals(session, record.experiment_id, after, limit))
    return SearchPage(
        experiment_id=record.experiment_id,
        kind=record.kind,
        metric=record.metric,
        mode="max" if record.maximise else "min",
        eta=record.eta,
        arms=record.arms,
        rungs=record.rungs,
        rounds=record.rounds,
        items=items,
        next=items[-1].sequence if items else after,
    )


def queue_answers(session: Session, seen_s: float) -> list[QueueDepth]:
    """What each queue holds, and how many of its runs none of the workers that reported within `seen_s` has the memory for."""
    too_large = progress.larger(session, workers.rooms(session, seen_s))
    groups = groupby(progress.depths(session), key=lambda depth: depth.queue)
    return [_queue(name, list(depths), too_large.get(name, 0)) for name, depths in groups]


def _queue(name: str, depths: Sequence[Depth], too_large: int) -> QueueDepth:
    counts = {depth.status: depth.runs for depth in depths}
    left = sum(depth.rounds_left for depth in depths if depth.status not in (Status.WAITING, Status.PAUSED))
    return QueueDepth(
        queue=name,
        queued=counts.get(Status.QUEUED, 0),
        running=counts.get(Status.RUNNING, 0),
        waiting=counts.get(Status.WAITING, 0),
        paused=counts.get(Status.PAUSED, 0),
        too_large=too_large,
        rounds_left=left,
    )


def dataset_answer(record: DatasetRecord) -> Dataset:
    """A data set."""
    return Dataset(
        id=record.id,
        name=record.name,
        owner=record.owner,
        client_sizes=ClientSizes(**record.client_sizes) if record.client_sizes else None,
        size_bytes=record.size_bytes,
        created_at=record.created_at,
        **Content.model_validate(record.content).model_dump(mode="json"),
    )


def key_answer(record: KeyRecord) -> Key:
    """A key, as far as it may be shown."""
    return Key(
        id=record.id,
        prefix=prefix_of(record.id),
        name=record.name,
        owner=record.owner,
        scope=record.scope,
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        last_used_at=record.last_used_at,
        max_waiting_runs=record.max_waiting_runs,
        max_running_runs=record.max_running_runs,
        max_stored_bytes=record.max_stored_bytes,
        max_compute_seconds=record.max_compute_seconds,
    )


def webhook_answer(record: WebhookRecord) -> Webhook:
    """A webhook, without its secret."""
    return Webhook(
        id=record.id,
        name=record.name,
        owner=record.owner,
        url=record.url,
        events=record.kinds,
        experiment_id=record.experiment_id,
        tag=record.tag,
        enabled=record.disabled_at is None,
        disabled_at=record.disabled_at,
        disabled_reason=record.disabled_reason,
        failing_since=record.failing_since,
        previous_secret_until=record.previous_until,
        created_at=record.created_at,
    )


def new_webhook_answer(record: WebhookRecord, secret: str) -> NewWebhook:
    """A webhook, and its secret, this once."""
    return NewWebhook(**webhook_answer(record).model_dump(), secret=secret)


def delivery_answer(record: DeliveryRecord) -> Delivery:
    """A delivery with its attempts."""
    return Delivery.model_validate(
        {
            "id": record.id,
            "webhook_id": record.webhook_id,
            "event": record.kind,
            "status": record.status,
            "attempts": record.attempts,
            "next_attempt_at": record.due_at if record.status is DeliveryStatus.PENDING else None,
            "created_at": record.created_at,
            "finished_at": record.finished_at,
            "payload": json.loads(record.body),
        }
    )


def _progress(rounds: Rounds) -> Progress:
    fraction = rounds.done / rounds.rounds if rounds.rounds else 1.0
    return Progress(rounds_done=rounds.done, rounds_total=rounds.rounds, fraction=fraction, runs=rounds.runs, eta_s=rounds.eta_s)


def _fields(answer: ExperimentSummary) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in ExperimentSummary.model_fields}
