"""How fast runs went here, by which the time that others like them will take can be told."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.platform.store.tables import ExperimentRecord, RoundRecord, RunRecord

LATEST = 100
"""Experiments that are looked at."""
MOST_RUNS = 25


def seconds_per_step(session: Session, spec: Mapping[str, Any], owner: str | None) -> float | None:
    """What a local step takes, in the median over the latest runs of `owner`, or of all, with the data, model and batch size of `spec`.

    None where there are no such runs.
    """
    document = ExperimentRecord.spec
    about = document["problem"]["dataset"]["kind"].as_string(), document["problem"]["model"], document["local"]["batch_size"]
    query = select(ExperimentRecord.id, *about).order_by(ExperimentRecord.id.desc()).limit(LATEST)
    wanted = spec["problem"]["dataset"]["kind"], spec["problem"]["model"], spec["local"]["batch_size"]
    latest = session.execute(query if owner is None else query.where(ExperimentRecord.owner == owner)).all()
    alike = [experiment_id for experiment_id, *given in latest if tuple(given) == wanted]
    return _median(session, alike) if alike else None


def _median(session: Session, experiment_ids: list[str]) -> float | None:
    run, last = RunRecord, RoundRecord
    query = select(run.seconds, run.done, last.local_steps).join(last, (last.run_id == run.id) & (last.round == run.done))
    played = (
        query.where(run.experiment_id.in_(experiment_ids), last.local_steps > 0, run.fence > 0).order_by(run.id.desc()).limit(MOST_RUNS)
    )
    paces = [seconds / (rounds * steps) for seconds, rounds, steps in session.execute(played)]
    return median(paces) if paces else None
