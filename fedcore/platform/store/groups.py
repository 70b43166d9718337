"""Groups: idle workers that train shards of a run beside the worker that has claimed it.

A group belongs to one claim of a run, and ends with it. Members hold a lease each, under the fence of
that claim; a run that is queued comes before any membership, so helping takes no worker from anyone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ScalarSelect, Select, and_, delete, exists, func, select, update
from sqlalchemy.orm import Session

from fedcore.errors import StaleLeaseError
from fedcore.platform.status import Status
from fedcore.platform.store import fair_share, scheduler
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.fair_share import OwnerQueue
from fedcore.platform.store.leases import ANY_MEMORY, RUNS, Claim
from fedcore.platform.store.tables import ExperimentRecord, GroupRecord, KeyRecord, MemberRecord, RunRecord


@dataclass(frozen=True, slots=True)
class Membership:
    """A worker's place in a group."""

    run: Claim
    """The claim of the run, which another worker holds."""
    worker: str
    address: str
    """Where the worker that holds the run is reached, "host:port"."""
    place: OwnerQueue
    key_id: str


def announce(session: Session, claim: Claim, address: str, seats: int) -> None:
    """Look for members of a claimed run, at most `seats` at a time, who connect to `address`.

    Raises StaleLeaseError when the run is no longer this claim's.
    """
    if RUNS.lock(session, claim.lease, RunRecord.id) is None:
        raise StaleLeaseError(f"run {claim.run_id} is no longer held by {claim.worker}")
    close(session, claim)
    session.add(GroupRecord(run_id=claim.run_id, fence=claim.fence, address=address, seats=seats))
    session.flush()


def close(session: Session, claim: Claim) -> None:
    """End the group of a claim, or of an earlier one of the same run."""
    own = GroupRecord.run_id == claim.run_id, GroupRecord.fence <= claim.fence
    for run_id in session.scalars(delete(GroupRecord).where(*own).returning(GroupRecord.run_id)):
        session.execute(delete(MemberRecord).where(MemberRecord.run_id == run_id))


def join(
    session: Session,
    worker: str,
    queues: Sequence[str],
    lease_s: float,
    worker_memory: int = ANY_MEMORY,
    worker_packages: Sequence[str] = (),
) -> Membership | None:
    """Take a free seat in a group of these queues for `lease_s` seconds; None where there is none, or
    a run is queued that the worker could claim.

    Higher priority first, then the group whose owner has the fewest members, then the one that has
    the fewest itself.
    """
    packages = tuple(worker_packages)
    if scheduler.should_preempt(session, worker, queues, 0, worker_memory, packages, turn_over=True):
        return None
    seated = _seated()
    of_owner = Counter(dict(session.execute(_members_by_owner()).all()))
    wanted = (
        select(RunRecord, GroupRecord, seated)
        .join(GroupRecord, and_(GroupRecord.run_id == RunRecord.id, GroupRecord.fence == RunRecord.fence))
        .where(
            *RUNS.leased(),
            RunRecord.lease_until > sql_now(),
            RunRecord.queue.in_(queues),
            RunRecord.worker != worker,
            RunRecord.memory_bytes <= worker_memory,
            seated < GroupRecord.seats,
        )
    )
    found = [
        (-run.priority, of_owner[run.owner], seats, run.id, run, group)
        for run, group, seats in session.execute(wanted)
        if {*json.loads(run.packages or "[]")} <= {*packages}
    ]
    if not found:
        return None
    *_, run, group = min(found)
    spec = session.scalars(
        select(ExperimentRecord.spec).where(ExperimentRecord.id == run.experiment_id)
    ).one()
    leave(session, run.id, worker)
    session.add(MemberRecord(run_id=run.id, worker=worker, fence=run.fence, lease_until=sql_now(lease_s)))
    session.flush()
    claim = Claim.of(run, spec, queues, None, worker_memory, packages)
    return Membership(claim, worker, group.address, OwnerQueue(run.queue, run.owner), run.key_id)


def renew(session: Session, member: Membership, lease_s: float, seconds: float) -> bool:
    """Extend a membership to `lease_s` seconds from now, and charge the run's owner for `seconds` of
    training since the last time; returns False when a run is queued that the worker should claim instead.

    Raises StaleLeaseError when the group has ended, or the run has been claimed by another worker.
    """
    _charge(session, member, seconds)
    held = (
        MemberRecord.run_id == member.run.run_id,
        MemberRecord.worker == member.worker,
        MemberRecord.fence == member.run.fence,
        exists().where(
            RunRecord.id == member.run.run_id,
            RunRecord.fence == member.run.fence,
            RunRecord.status == Status.RUNNING,
        ),
    )
    renewal = update(MemberRecord).where(*held).values(lease_until=sql_now(lease_s))
    if session.execute(renewal.returning(MemberRecord.worker)).first() is None:
        raise StaleLeaseError(
            f"{member.worker} is no longer a member of the group of run {member.run.run_id}"
        )
    run = member.run
    return not scheduler.should_preempt(
        session, member.worker, run.queues, 0, run.worker_memory, run.worker_packages, turn_over=True
    )


def leave(session: Session, run_id: str, worker: str) -> None:
    """End a membership."""
    session.execute(delete(MemberRecord).where(MemberRecord.run_id == run_id, MemberRecord.worker == worker))


def members(session: Session, claim: Claim) -> Sequence[str]:
    """The workers that have a seat in the group of this claim."""
    own = MemberRecord.run_id == claim.run_id, MemberRecord.fence == claim.fence
    alive = MemberRecord.lease_until > sql_now()
    return session.scalars(select(MemberRecord.worker).where(*own, alive).order_by(MemberRecord.worker)).all()


def _seated() -> ScalarSelect[int]:
    """Number of members of a run's group."""
    of_run = MemberRecord.run_id == RunRecord.id, MemberRecord.fence == RunRecord.fence
    alive = MemberRecord.lease_until > sql_now()
    query = select(func.count()).select_from(MemberRecord).where(*of_run, alive)
    return query.correlate(RunRecord).scalar_subquery()


def _members_by_owner() -> Select[str, int]:
    of_run = and_(MemberRecord.run_id == RunRecord.id, MemberRecord.fence == RunRecord.fence)
    query = select(RunRecord.owner, func.count()).join(MemberRecord, of_run)
    return query.where(MemberRecord.lease_until > sql_now()).group_by(RunRecord.owner)


def _charge(session: Session, member: Membership, seconds: float) -> None:
    if not seconds:
        return
    fair_share.add_seconds(session, member.worker, member.place, seconds)
    if member.key_id:
        spent = {"spent_seconds": KeyRecord.spent_seconds + seconds}
        session.execute(update(KeyRecord).where(KeyRecord.id == member.key_id).values(spent))
