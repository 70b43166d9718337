"""Log lines of runs and the resources that they used, as their workers report them.

Both are written in transactions that workers make anyhow, and are bounded for each run: of lines the
newest are kept, and of samples neighbours are merged, so that they cover the whole time of the run.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import String, bindparam, delete, func, select
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.orm import Session

from fedcore.errors import StaleLeaseError
from fedcore.platform.logging import LoggedEvent
from fedcore.platform.status import LogLevel
from fedcore.platform.store.leases import Lease
from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import Document, ResourceRecord, RunLogRecord, RunRecord

MAX_LINES = 1_000
"""Log lines that are kept of a run."""
MAX_SAMPLES = 600
"""Samples that are kept of a run: a run of half an hour has one for each heartbeat."""

log = logging.getLogger(__name__)


class ResourceUse(NamedTuple):
    """Resources that a process used over some seconds."""

    time: datetime
    """End of that time."""
    seconds: float
    cpu_cores: float
    """Mean number of cores in use."""
    memory_bytes: int
    gpu_utilisation: float | None = None
    """Fraction of the time, 0 to 1; None without a GPU, or if unknown."""
    gpu_memory_bytes: int | None = None


_RUN = bindparam("run", type_=String)
_STORED = select(
    select(func.max(RunLogRecord.number)).where(RunLogRecord.run_id == _RUN).scalar_subquery(),
    select(func.max(ResourceRecord.number)).where(ResourceRecord.run_id == _RUN).scalar_subquery(),
    select(func.count()).where(ResourceRecord.run_id == _RUN).scalar_subquery(),
).where(
    RunRecord.id == _RUN,
    RunRecord.fence == bindparam("fence"),
    RunRecord.worker == bindparam("holder"),
)
"""The last numbers and the count of samples, unless the run was claimed again."""


def append(
    session: Session, lease: Lease, lines: Sequence[LoggedEvent], samples: Sequence[ResourceUse]
) -> None:
    """Store lines and samples of a run, after a write under its lease in the same transaction, which
    locks the run.

    What cannot be stored is lost, and the transaction goes on without it. Raises StaleLeaseError when
    another worker has claimed the run.
    """
    if not (lines or samples):
        return
    try:
        with session.begin_nested():
            _append(session, lease, lines, samples)
    except StatementError as error:
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            raise
        log.warning("log lines and resource use of run %s are not stored: %s", lease.key, error)


def _append(
    session: Session, lease: Lease, lines: Sequence[LoggedEvent], samples: Sequence[ResourceUse]
) -> None:
    held = {"run": lease.key, "fence": lease.fence, "holder": lease.holder}
    stored = session.execute(_STORED, held).first()
    if stored is None:
        raise StaleLeaseError(f"run {lease.key} is no longer held by {lease.holder} (claim {lease.fence})")
    last_line, last_sample, count = stored[0] or 0, stored[1] or 0, stored[2]
    own = {"run_id": lease.key, "worker": lease.holder}
    if lines:
        rows = [
            {**own, "number": number, **line._asdict()}
            for number, line in enumerate(lines[-MAX_LINES:], last_line + 1)
        ]
        session.execute(insert_into(RunLogRecord), rows)
        oldest = rows[-1]["number"] - MAX_LINES
        if oldest > 0:
            dropped = RunLogRecord.run_id == lease.key, RunLogRecord.number <= oldest
            session.execute(delete(RunLogRecord).where(*dropped))
    if samples:
        numbered = enumerate(samples, last_sample + 1)
        session.execute(
            insert_into(ResourceRecord),
            [{**own, "number": number, **sample._asdict()} for number, sample in numbered],
        )
        if count + len(samples) > MAX_SAMPLES:
            _thin_samples(session, lease.key)


def _thin_samples(session: Session, run_id: str) -> None:
    """Merge neighbours until at most about half as many samples are left as a run may have, each over a
    like part of its time.
    """
    found = resource_samples(session, run_id)
    least_s = 2 * sum(sample.seconds for sample in found) / MAX_SAMPLES
    merged, group, covered_s = [], list[ResourceRecord](), 0.0
    for sample in found:
        group.append(sample)
        covered_s += sample.seconds
        if covered_s >= least_s or sample is found[-1]:
            merged.append(_merged(group))
            group, covered_s = [], 0.0
    session.execute(delete(ResourceRecord).where(ResourceRecord.run_id == run_id))
    session.execute(insert_into(ResourceRecord), merged)


def _merged(group: Sequence[ResourceRecord]) -> Document:
    """One sample over the time of some: mean use of processors, and the most memory."""
    last, seconds = group[-1], sum(sample.seconds for sample in group)
    loads = [
        (sample.gpu_utilisation, sample.seconds) for sample in group if sample.gpu_utilisation is not None
    ]
    return {
        "run_id": last.run_id,
        "number": last.number,
        "time": last.time,
        "seconds": seconds,
        "worker": last.worker,
        "cpu_cores": sum(sample.cpu_cores * sample.seconds for sample in group) / seconds,
        "memory_bytes": max(sample.memory_bytes for sample in group),
        "gpu_utilisation": sum(load * s for load, s in loads) / sum(s for _, s in loads) if loads else None,
        "gpu_memory_bytes": max(
            (sample.gpu_memory_bytes for sample in group if sample.gpu_memory_bytes is not None), default=None
        ),
    }


def log_lines(
    session: Session, run_id: str, after: int = 0, limit: int = MAX_LINES, level: LogLevel = LogLevel.DEBUG
) -> Sequence[RunLogRecord]:
    """The lines of a run of at least `level` that follow number `after`, in order, at most `limit`."""
    wanted = RunLogRecord.run_id == run_id, RunLogRecord.number > after
    query = select(RunLogRecord).where(*wanted).order_by(RunLogRecord.number).limit(limit)
    if level is not LogLevel.DEBUG:
        query = query.where(RunLogRecord.level.in_(level.and_above))
    return session.scalars(query).all()


def resource_samples(
    session: Session, run_id: str, after: int = 0, limit: int | None = None
) -> Sequence[ResourceRecord]:
    """The samples of a run that follow number `after`, in order, at most `limit`."""
    wanted = ResourceRecord.run_id == run_id, ResourceRecord.number > after
    query = select(ResourceRecord).where(*wanted).order_by(ResourceRecord.number).limit(limit)
    return session.scalars(query).all()
