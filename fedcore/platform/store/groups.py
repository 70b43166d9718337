"""Groups: idle workers that train shards of a run beside the worker that has claimed it.

A group belongs to one claim of a run, and ends with it. Members hold a lease each, under the fence of
that claim; a run that is queued comes before any membership, so helping takes no worker from anyone.
Which group a worker joins is decided as which run it claims: by priority, then fairly between owners.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import ColumnElement, ScalarSelect, and_, delete, exists, func, select, update
from sqlalchemy.orm import Session

from fedcore.errors import StaleLeaseError
from fedcore.platform.status import Status
from fedcore.platform.store import fair_share, quotas, scheduler
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.fair_share import FairShareState, OwnerQueue, RunCandidate
from fedcore.platform.store.leases import RUNS, Claim, Claimant, Lease
from fedcore.platform.store.tables import ExperimentRecord, GroupRecord, KeyRecord, MemberRecord, RunRecord

SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class Membership:
    """A worker's place in a group."""

    run: Claim
    """The claim of the run, which another worker holds."""
    connection: str = field(repr=False)
    """Secret that the two workers prove to each other when they meet, another one for each membership."""
    address: str
    """Address, "host:port", of the worker that holds the run."""
    place: OwnerQueue
    key_id: str

    @property
    def worker(self) -> str:
        """The member."""
        return self.run.claimant.worker


class ActiveGroup(NamedTuple):
    """A group as users see it."""

    run: RunRecord
    name: str
    """Name of the experiment."""
    record: GroupRecord
    members: Sequence[str]
    """Workers that train shards of the run besides the one that holds it."""


def announce(session: Session, claim: Claim, address: str, seats: int) -> None:
    """Look for members of a claimed run, at most `seats` at a time, who have the type of device that its
    worker has and connect to `address`.

    Raises StaleLeaseError when the run is no longer this claim's.
    """
    if RUNS.lock(session, claim.lease, RunRecord.id) is None:
        raise StaleLeaseError(f"run {claim.run_id} is no longer held by {claim.worker}")
    close(session, claim)
    about = {"address": address, "seats": seats, "device": claim.claimant.device}
    session.add(GroupRecord(run_id=claim.run_id, fence=claim.fence, **about))
    session.flush()


def close(session: Session, claim: Claim) -> None:
    """End the group of a claim, or of an earlier one of the same run."""
    own = GroupRecord.run_id == claim.run_id, GroupRecord.fence <= claim.fence
    for run_id in session.scalars(delete(GroupRecord).where(*own).returning(GroupRecord.run_id)):
        session.execute(delete(MemberRecord).where(MemberRecord.run_id == run_id))


def join(
    session: Session, claimant: Claimant, lease_s: float, declined: Collection[Lease] = ()
) -> Membership | None:
    """Take a free seat in a group for a worker, for `lease_s` seconds; None if there is no free seat, or
    if a run is queued that the worker could claim.

    Higher priority first; then by fair share between owners, as runs are claimed, each member
    counted as a worker that serves the owner; of an owner's groups the one with the fewest members.
    Passed over are groups on another type of device, groups of claims that the worker has
    `declined`, and groups of keys without compute seconds.
    """
    if scheduler.should_preempt(session, claimant, 0, turn_over=True):
        return None
    worker, queues = claimant.worker, claimant.queues
    usable = scheduler.usable_packages(session, claimant.packages, Status.RUNNING)
    groups = {
        run.id: (seated, run, group)
        for run, group, seated in session.execute(
            select(RunRecord, GroupRecord, _seated())
            .join(GroupRecord, and_(GroupRecord.run_id == RunRecord.id, GroupRecord.fence == RunRecord.fence))
            .where(
                *RUNS.leased(),
                RunRecord.lease_until > sql_now(),
                RunRecord.queue.in_(queues),
                RunRecord.worker != worker,
                *scheduler.suits(RunRecord, claimant.memory_bytes, usable),
                GroupRecord.device == claimant.device,
                _seated() < GroupRecord.seats,
            )
        )
        if Lease(run.id, run.fence, run.worker) not in declined
    }
    if not groups:
        return None
    spent = quotas.exhausted(session, {run.key_id for _, run, _ in groups.values() if run.key_id})
    waiting = [
        RunCandidate(OwnerQueue(run.queue, run.owner), run.key_id, run.priority, run.queued_at, run.id)
        for _, run, _ in sorted(groups.values(), key=lambda found: (found[0], found[1].id))
        if run.key_id not in spent
    ]
    books = FairShareState(queues, *fair_share.read_usage(session, queues), _serving(session))
    while True:
        # Those with the fewest members come first.
        best = {(flow.priority, flow.place): flow for flow in reversed(waiting)}
        choice = fair_share.choose_candidate(best.values(), books)
        if choice is None:
            return None
        _, run, group = groups[choice.flow.run_id]
        if _has_seat(session, group):
            break
        waiting.remove(choice.flow)
    fair_share.record_pick(session, worker, choice)
    spec = session.scalars(
        select(ExperimentRecord.spec).where(ExperimentRecord.id == run.experiment_id)
    ).one()
    connection = secrets.token_hex(SECRET_BYTES)
    seat = {"lease_until": sql_now(lease_s), "connection": connection}
    session.execute(delete(MemberRecord).where(MemberRecord.worker == worker))
    session.add(MemberRecord(run_id=run.id, worker=worker, fence=run.fence, **seat))
    session.flush()
    claim = Claim.of(run, spec, claimant)
    return Membership(claim, connection, group.address, choice.flow.place, run.key_id)


def renew(session: Session, membership: Membership, lease_s: float, seconds: float) -> bool:
    """Extend a membership to `lease_s` seconds from now, and charge the run's owner for `seconds` of
    training since the last time; returns False when a run is queued that the worker should claim instead,
    or the run's key has no compute seconds left.

    Raises StaleLeaseError when the group has ended, or the run has been claimed by another worker.
    """
    _charge(session, membership, seconds)
    held = (
        *_own(membership),
        exists().where(
            RunRecord.id == membership.run.run_id,
            RunRecord.fence == membership.run.fence,
            RunRecord.status == Status.RUNNING,
        ),
    )
    renewal = update(MemberRecord).where(*held).values(lease_until=sql_now(lease_s))
    if session.execute(renewal.returning(MemberRecord.worker)).first() is None:
        raise StaleLeaseError(
            f"{membership.worker} is no longer a member of the group of run {membership.run.run_id}"
        )
    if membership.key_id and quotas.exhausted(session, [membership.key_id]):
        return False
    return not scheduler.should_preempt(session, membership.run.claimant, 0, turn_over=True)


def leave(session: Session, membership: Membership, seconds: float = 0.0) -> None:
    """End a membership, and charge the run's owner for `seconds` of training since the last renewal."""
    _charge(session, membership, seconds)
    session.execute(delete(MemberRecord).where(*_own(membership)))


def members(session: Session, claim: Claim) -> dict[str, str]:
    """The workers that have a seat in the group of this claim, by the secrets of their connections."""
    own = MemberRecord.run_id == claim.run_id, MemberRecord.fence == claim.fence, _seat_is_taken()
    return dict(session.execute(select(MemberRecord.connection, MemberRecord.worker).where(*own)).all())


def record_shards(session: Session, claim: Claim, trained: Mapping[str, int]) -> None:
    """Note how many shards of a round each worker of this claim's group has trained."""
    own = GroupRecord.run_id == claim.run_id, GroupRecord.fence == claim.fence
    session.execute(update(GroupRecord).where(*own).values(trained=dict(trained)))


def list_groups(session: Session, limit: int) -> list[ActiveGroup]:
    """The groups of runs in execution, the oldest runs first, at most `limit`."""
    run, group = RunRecord, GroupRecord
    query = (
        select(run, ExperimentRecord.name, group)
        .join(group, and_(group.run_id == run.id, group.fence == run.fence))
        .join(ExperimentRecord, ExperimentRecord.id == run.experiment_id)
        .where(*RUNS.leased())
        .order_by(run.id)
        .limit(limit)
    )
    found = session.execute(query).all()
    seats = select(MemberRecord.run_id, MemberRecord.fence, MemberRecord.worker).where(
        MemberRecord.run_id.in_([held.id for held, _, _ in found]), _seat_is_taken()
    )
    members = defaultdict[tuple[str, int], list[str]](list)
    for run_id, fence, worker in session.execute(seats.order_by(MemberRecord.worker)):
        members[run_id, fence].append(worker)
    return [ActiveGroup(held, name, record, members[held.id, held.fence]) for held, name, record in found]


def _own(membership: Membership) -> tuple[ColumnElement[bool], ...]:
    return (
        MemberRecord.run_id == membership.run.run_id,
        MemberRecord.worker == membership.worker,
        MemberRecord.fence == membership.run.fence,
        MemberRecord.connection == membership.connection,
    )


def _seat_is_taken() -> ColumnElement[bool]:
    return MemberRecord.lease_until > sql_now()


def _seated() -> ScalarSelect[int]:
    """Number of members of a run's group."""
    of_run = MemberRecord.run_id == RunRecord.id, MemberRecord.fence == RunRecord.fence
    query = select(func.count()).select_from(MemberRecord).where(*of_run, _seat_is_taken())
    return query.correlate(RunRecord).scalar_subquery()


def _has_seat(session: Session, group: GroupRecord) -> bool:
    """Lock a group; False if others have taken its last seat meanwhile, or it has ended."""
    own = GroupRecord.run_id == group.run_id, GroupRecord.fence == group.fence
    seats = session.scalar(select(GroupRecord.seats).where(*own).with_for_update())
    members = MemberRecord.run_id == group.run_id, MemberRecord.fence == group.fence, _seat_is_taken()
    taken = session.scalar(select(func.count()).select_from(MemberRecord).where(*members)) or 0
    return seats is not None and taken < seats


def _serving(session: Session) -> Counter[OwnerQueue]:
    """Number of workers that execute runs of each owner, or train shards of them."""
    of_run = and_(MemberRecord.run_id == RunRecord.id, MemberRecord.fence == RunRecord.fence)
    members = select(RunRecord.queue, RunRecord.owner, func.count()).join(MemberRecord, of_run)
    counted = members.where(_seat_is_taken()).group_by(RunRecord.queue, RunRecord.owner)
    helping = {OwnerQueue(queue, owner): count for queue, owner, count in session.execute(counted)}
    executing = Counter(place for place, _ in {(run.place, run.worker) for run in scheduler.running(session)})
    return executing + Counter(helping)


def _charge(session: Session, membership: Membership, seconds: float) -> None:
    if not seconds:
        return
    fair_share.add_seconds(session, membership.worker, membership.place, seconds)
    if membership.key_id:
        spent = {"spent_seconds": KeyRecord.spent_seconds + seconds}
        session.execute(update(KeyRecord).where(KeyRecord.id == membership.key_id).values(spent))
