"""Quotas: how much of a service what is made with one key may take, held in the transaction that
would take more.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from fedcore.errors import QuotaError
from fedcore.platform.status import UNSTARTED, Status
from fedcore.platform.store.records import get_by_id
from fedcore.platform.store.tables import BundleRecord, DatasetRecord, KeyRecord, RunRecord, WeightsRecord


@dataclass(frozen=True, slots=True)
class Quota:
    """The most of each; None: as much as it likes."""

    waiting_runs: int | None = None
    """Runs that are queued or paused."""
    running_runs: int | None = None
    """Runs that workers hold; further ones wait."""
    stored_bytes: int | None = None
    """Bytes of uploads as they are kept: data sets, code bundles and weights."""
    compute_seconds: float | None = None
    """Seconds that rounds took, deleted runs included; once they are used up, no run is executed.
    """


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of each quota."""

    waiting_runs: int
    running_runs: int
    stored_bytes: int
    compute_seconds: float


def usage(session: Session, key: KeyRecord) -> Usage:
    """Use of the quotas of a key."""
    runs = RunRecord.key_id == key.id
    waiting = session.scalars(
        select(func.count()).select_from(RunRecord).where(runs, RunRecord.status.in_(UNSTARTED))
    ).one()
    stored = 0
    for record in (DatasetRecord, BundleRecord, WeightsRecord):
        made = func.coalesce(func.sum(record.size_bytes), 0)
        stored += session.scalars(select(made).where(record.key_id == key.id)).one()
    seconds = session.scalars(select(func.coalesce(func.sum(RunRecord.seconds), 0.0)).where(runs)).one()
    return Usage(waiting, _running(session, key.id), int(stored), key.spent_seconds + seconds)


def quota_of(key: KeyRecord) -> Quota:
    """Limits of a key."""
    return Quota(key.max_waiting_runs, key.max_running_runs, key.max_stored_bytes, key.max_compute_seconds)


def check_runs(session: Session, key_id: str, joining: int = 0) -> None:
    """Raise QuotaError if the queued runs of this key, and `joining` more, exceed its limits."""
    for reason in _excesses(*_held(session, key_id), joining):
        raise QuotaError(reason)


def violations(session: Session, key_id: str, runs: int) -> list[str]:
    """Reasons why `runs` more would be refused."""
    key = get_by_id(session, KeyRecord, key_id)
    if key is None or quota_of(key) == Quota():
        return []
    excesses = _excesses(quota_of(key), usage(session, key), runs)
    return [f"would be rejected: {reason}" for reason in excesses]


def check_retry(session: Session, experiment_id: str) -> None:
    """Raise QuotaError as `check_runs` does, after runs of an experiment were queued again."""
    for key_id in _keys_of(session, experiment_id):
        check_runs(session, key_id)


def check_resume(session: Session, experiment_id: str) -> None:
    """Raise QuotaError when the key of paused runs that are resumed has no compute seconds left."""
    for key_id in _keys_of(session, experiment_id):
        quota, used = _held(session, key_id)
        for reason in _excesses(Quota(compute_seconds=quota.compute_seconds), used, 0):
            raise QuotaError(reason)


def running_limits(session: Session, key_ids: Collection[str]) -> dict[str, int]:
    """How many runs of each of these keys may be running at a time, by key; unlimited keys are left
    out.

    It is 0 for a key that has used the seconds it may compute.
    """
    limited = or_(KeyRecord.max_running_runs.is_not(None), KeyRecord.max_compute_seconds.is_not(None))
    columns = KeyRecord.id, KeyRecord.max_running_runs, KeyRecord.max_compute_seconds
    found = session.execute(select(*columns).where(KeyRecord.id.in_(key_ids), limited)).all()
    most = {key_id: runs for key_id, runs, _ in found if runs is not None}
    return most | dict.fromkeys(
        exhausted(session, [key_id for key_id, _, seconds in found if seconds is not None]), 0
    )


def exhausted(session: Session, key_ids: Collection[str]) -> dict[str, float]:
    """The seconds that each of these keys could compute, by key, for keys that have used them all."""
    if not key_ids:
        return {}
    query = select(KeyRecord.id, KeyRecord.max_compute_seconds).where(KeyRecord.id.in_(key_ids), _spent())
    return {key_id: seconds for key_id, seconds in session.execute(query) if seconds is not None}


def free_slots(session: Session, key_id: str) -> int | None:
    """How many more runs of a key may be taken; None: as many as there are.

    Where it is limited the key's row is locked, so that of two who take the second counts what the
    first took. While it is locked there is no room: to wait would keep the runs of others waiting.
    """
    if key_id not in running_limits(session, [key_id]):
        return None
    if (
        session.scalars(
            select(KeyRecord.id).where(KeyRecord.id == key_id).with_for_update(skip_locked=True)
        ).first()
        is None
    ):
        return 0
    most = running_limits(session, [key_id]).get(key_id)
    return None if most is None else max(0, most - _running(session, key_id))


def check_stored(session: Session, key_id: str) -> None:
    """Raise QuotaError if data sets, code bundles and weights made with a key are larger than allowed."""
    quota, used = _held(session, key_id)
    if quota.stored_bytes is not None and used.stored_bytes > quota.stored_bytes:
        raise QuotaError(
            f"quota max_stored_bytes exceeded: {used.stored_bytes:,} bytes of data sets, code and weights,"
            f" limit {quota.stored_bytes:,}; delete some"
        )


def archive_usage(session: Session, experiment_id: str) -> None:
    """Its runs are about to be deleted: what they have computed stays spent."""
    spent = (
        select(RunRecord.key_id, func.sum(RunRecord.seconds))
        .where(RunRecord.experiment_id == experiment_id)
        .group_by(RunRecord.key_id)
    )
    _add_spent(session, dict(session.execute(spent).all()))


def move_runs(session: Session, key_id: str, *which: ColumnElement[bool]) -> None:
    """Locked runs belong to this key from now on: what they have computed stays spent by the keys before."""
    others = *which, RunRecord.key_id != key_id
    spent = select(RunRecord.key_id, func.sum(RunRecord.seconds)).where(*others).group_by(RunRecord.key_id)
    more = dict(session.execute(spent).all())
    # The runs bring all of their seconds, of which this key has spent none.
    more[key_id] = -sum(more.values())
    _add_spent(session, more)
    session.execute(update(RunRecord).where(*others).values(key_id=key_id))


def _add_spent(session: Session, more: Mapping[str, float]) -> None:
    # In order: two that lock the same keys in different orders would wait for each other.
    for key_id, seconds in sorted(more.items()):
        spent = {"spent_seconds": KeyRecord.spent_seconds + seconds}
        session.execute(update(KeyRecord).where(KeyRecord.id == key_id).values(spent))


def _excesses(quota: Quota, used: Usage, joining: int) -> Iterator[str]:
    """Say which limits keep a key from computing, or would with `joining` further runs."""
    if quota.compute_seconds is not None and used.compute_seconds >= quota.compute_seconds:
        yield (
            f"quota max_compute_seconds exceeded: this key has used {used.compute_seconds:,.1f} of"
            f" {quota.compute_seconds:,.1f} seconds"
        )
    waiting = used.waiting_runs + joining
    if quota.waiting_runs is not None and waiting > quota.waiting_runs:
        yield (
            f"quota max_waiting_runs exceeded: {waiting:,} queued or paused runs, limit"
            f" {quota.waiting_runs:,}; cancel some or wait"
        )


def _spent() -> ColumnElement[bool]:
    """Condition on a key: it has used the seconds it may compute."""
    computed = (
        select(func.coalesce(func.sum(RunRecord.seconds), 0.0))
        .where(RunRecord.key_id == KeyRecord.id)
        .scalar_subquery()
    )
    # The sum is taken of none but those that are limited.
    return and_(
        KeyRecord.max_compute_seconds.is_not(None),
        KeyRecord.spent_seconds + computed >= KeyRecord.max_compute_seconds,
    )


def _running(session: Session, key_id: str) -> int:
    running = RunRecord.key_id == key_id, RunRecord.status == Status.RUNNING
    return session.scalars(select(func.count()).select_from(RunRecord).where(*running)).one()


def _keys_of(session: Session, experiment_id: str) -> Sequence[str]:
    """The keys that the runs of an experiment were made with, in order."""
    made = (
        select(RunRecord.key_id)
        .where(RunRecord.experiment_id == experiment_id)
        .distinct()
        .order_by(RunRecord.key_id)
    )
    return session.scalars(made).all()


def _held(session: Session, key_id: str) -> tuple[Quota, Usage]:
    """Limits and use of a key.

    Where it has quotas, its row is locked: of two requests the second counts the runs of the first.
    """
    # Most keys have none, and cost no more than this.
    key = get_by_id(session, KeyRecord, key_id)
    if key is None or quota_of(key) == Quota():
        return Quota(), Usage(0, 0, 0, 0.0)
    session.refresh(key, with_for_update=True)
    return quota_of(key), usage(session, key)
