"""Experiments as answers."""

from typing import Any

from fedcore.platform.store import Session, progress, search
from fedcore.platform.store.progress import ArmPoint, Overview
from fedcore.platform.store.progress import RunProgress as Rounds
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.spec.digest import specification_sha256
from fedq.schemas import ArmSummary, Experiment, ExperimentSummary, Progress


def experiment_answer(
    session: Session, record: ExperimentRecord, overview: Overview | None = None
) -> Experiment:
    """An experiment with its progress and arms: those of `overview`, where that is known."""
    rounds, points = overview or progress.overview(session, record.id)
    last = search.last(session, record.id) if record.spec.get("search") else {}
    summary = summary_answer(record, rounds)
    arms = [_arm(point, last.get(point.arm)) for point in points]
    return Experiment(**_fields(summary), arms=arms, specification=record.spec, provenance=made_from(record))


def made_from(record: ExperimentRecord) -> dict[str, Any]:
    """An experiment's provenance, and the digest of its specification as it is now."""
    return record.provenance | {"specification_sha256": specification_sha256(record.spec)}


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


def _arm(point: ArmPoint, last: search.ArmStanding | None) -> ArmSummary:
    judged = {} if last is None else {"rung": last.round, "value": last.value, "verdict": last.verdict}
    return ArmSummary(index=point.arm, name=point.name, settings=point.settings, **judged)


def _progress(rounds: Rounds) -> Progress:
    fraction = rounds.done / rounds.rounds if rounds.rounds else 1.0
    return Progress(
        rounds_done=rounds.done,
        rounds_total=rounds.rounds,
        fraction=fraction,
        runs=rounds.runs,
        eta_s=rounds.eta_s,
    )


def _fields(answer: ExperimentSummary) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in ExperimentSummary.model_fields}
