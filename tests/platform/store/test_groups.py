"""Groups: which idle workers train shards of which runs, and for how long."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from fedcore.errors import StaleLeaseError
from fedcore.platform.access import Scope
from fedcore.platform.store import (
    Database,
    Status,
    experiments,
    fair_share,
    groups,
    keys,
    lifecycle,
    quotas,
    runs,
)
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.fair_share import OwnerQueue
from fedcore.platform.store.groups import Membership
from fedcore.platform.store.leases import Claim, Lease
from fedcore.platform.store.tables import GroupRecord, MemberRecord, RunRecord
from tests.builders.claims import LEASE_S, QUEUE, claim, claimant
from tests.builders.experiments import submit
from tests.builders.specifications import ONE_RUN, Document, specification
from tests.builders.transactions import read, write
from tests.support.databases import copied_file, kept_database

SHARDED: Document = {"execution": {"shards": 4}}


def announced(database: Database, worker: str = "leader", seats: int = 3, **changes: Any) -> Claim:
    submit(database, **SHARDED, **changes)
    held = claim(database, worker)
    write(database, groups.announce, held, "127.0.0.1:1", seats)
    return held


def join(database: Database, worker: str, declined: Collection[Lease] = (), **has: Any) -> Membership | None:
    return write(database, groups.join, claimant(worker, **has), LEASE_S, declined)


def test_an_idle_worker_takes_a_free_seat(database: Database) -> None:
    held = announced(database, seats=1)
    member = join(database, "idle")
    assert member is not None
    assert (member.run.run_id, member.run.fence, member.address) == (held.run_id, held.fence, "127.0.0.1:1")
    assert read(database, groups.members, held) == {member.connection: "idle"}
    assert join(database, "another") is None


def test_the_worker_of_a_run_is_no_member_of_its_group(database: Database) -> None:
    announced(database)
    assert join(database, "leader") is None


def test_a_worker_without_the_memory_stays_away(database: Database) -> None:
    announced(database)
    assert join(database, "small", memory_bytes=-1) is None


def test_a_queued_run_comes_before_a_seat_and_ends_a_membership(database: Database) -> None:
    announced(database)
    member = join(database, "idle")
    assert member is not None
    assert write(database, groups.renew, member, LEASE_S, 0.0)
    submit(database)
    assert not write(database, groups.renew, member, LEASE_S, 0.0)
    assert join(database, "another") is None


def test_a_paused_run_keeps_no_member_from_its_work(database: Database) -> None:
    announced(database)
    other = submit(database)
    write(database, lifecycle.pause, other.id)
    assert join(database, "idle") is not None


def test_a_seat_whose_lease_has_expired_is_free(database: Database) -> None:
    announced(database, seats=1)
    write(database, groups.join, claimant("frozen"), -1.0)
    assert join(database, "idle") is not None


def test_members_of_an_earlier_claim_are_refused(database: Database) -> None:
    """The fence of the run is that of its group."""
    submit(database, **SHARDED)
    lost = claim(database, "leader", lease_s=60.0)
    write(database, groups.announce, lost, "127.0.0.1:1", 3)
    member = join(database, "idle")
    assert member is not None
    write(database, runs.release, lost)
    later = claim(database, "next leader")
    with pytest.raises(StaleLeaseError):
        write(database, groups.renew, member, LEASE_S, 0.0)
    assert join(database, "another") is None
    write(database, groups.announce, later, "127.0.0.1:2", 3)
    assert read(database, groups.members, later) == {}
    with pytest.raises(StaleLeaseError):
        write(database, groups.announce, member.run, "127.0.0.1:1", 3)


def test_idle_workers_help_the_owner_whom_the_fewest_workers_serve(database: Database) -> None:
    """Here three each, and then the group with the fewest members."""
    first, second = announced(database, "leader"), announced(database, "leader 2", owner="ann")
    third = announced(database, "leader 3")
    helped = [join(database, f"idle {number}") for number in range(3)]
    chosen = [member.run.run_id for member in helped if member is not None]
    assert chosen == [second.run_id, first.run_id, second.run_id]
    write(database, lifecycle.cancel, second.experiment_id)
    write(database, runs.release, second)
    after = join(database, "another")
    assert after is not None
    assert after.run.run_id == third.run_id


def test_a_worker_stays_away_from_another_type_of_device_and_from_a_group_that_it_has_declined(
    database: Database,
) -> None:
    held = announced(database)
    assert join(database, "idle", device="cuda") is None
    assert join(database, "idle", declined={held.lease}) is None
    assert join(database, "idle") is not None


def test_a_worker_that_joins_again_has_a_new_connection(database: Database) -> None:
    """Remains of the one before, on either side, are not taken for it."""
    held = announced(database, seats=1)
    before = join(database, "idle")
    assert before is not None
    write(database, groups.leave, before, 3.0)
    again = join(database, "idle")
    assert again is not None
    write(database, groups.leave, before, 4.0)
    assert read(database, groups.members, held) == {again.connection: "idle"}
    assert again.connection != before.connection
    with pytest.raises(StaleLeaseError):
        write(database, groups.renew, before, LEASE_S, 0.0)
    usage, _ = read(database, fair_share.read_usage, [QUEUE])
    assert usage[OwnerQueue(QUEUE, "local")].seconds == 7.0


def test_groups_are_listed_with_their_members_and_the_shards_of_each(database: Database) -> None:
    held = announced(database)
    join(database, "idle")
    write(database, groups.record_shards, held, {"leader": 3, "idle": 1})
    (group,) = read(database, groups.list_groups, 10)
    assert (group.run.id, group.name, group.run.owner, group.run.worker) == (
        held.run_id,
        "one run",
        "local",
        "leader",
    )
    assert (group.members, group.record.trained) == (["idle"], {"leader": 3, "idle": 1})
    write(database, runs.release, held)
    assert read(database, groups.list_groups, 10) == []


def test_training_for_a_group_is_charged_to_the_owner_and_the_key(database: Database) -> None:
    with database.transaction() as session:
        key_id = keys.create(session, owner="ann", scope=Scope.SUBMIT, max_compute_seconds=10.0)[0].id
    spec = specification(ONE_RUN, **SHARDED)
    write(database, experiments.create, NewExperiment(spec, owner="ann", key_id=key_id))
    held = claim(database, "leader")
    write(database, groups.announce, held, "127.0.0.1:1", 3)
    member = join(database, "idle")
    assert member is not None
    write(database, groups.renew, member, LEASE_S, 4.0)
    assert not read(database, quotas.exhausted, [key_id])
    usage, _ = read(database, fair_share.read_usage, [QUEUE])
    assert usage[OwnerQueue(QUEUE, "ann")].seconds == 4.0
    assert not write(database, groups.renew, member, LEASE_S, 7.0)
    assert read(database, quotas.exhausted, [key_id])
    assert join(database, "another") is None


def test_a_group_ends_with_its_run(database: Database) -> None:
    held = announced(database)
    member = join(database, "idle")
    assert member is not None
    write(database, groups.close, held)
    assert join(database, "another") is None
    with pytest.raises(StaleLeaseError):
        write(database, groups.renew, member, LEASE_S, 0.0)


# Any history of runs and workers: groups hold no worker that a queued run could have, and take
# those that are left by priority and fair share.

MEMORY = {"small": 1, "large": 2, "large too": 2, "largest": 3, "largest too": 3}
"""Memory that runs may take on each worker."""
SEATS = 2
submissions = st.tuples(
    st.sampled_from(["ann", "bob", "eve"]), st.integers(4, 6), st.booleans(), st.integers(1, 3)
)
"""Owner, priority, in shards or not, and memory of a run."""
steps = st.lists(
    st.one_of(submissions, *[st.sampled_from(sorted(MEMORY))] * 3, st.just("a run ends")),
    min_size=15,
    max_size=30,
)


@dataclass
class Service:
    """A store and its workers. Changes in place."""

    database: Database
    leading: dict[str, Claim] = field(default_factory=dict)
    helping: dict[str, Membership] = field(default_factory=dict)

    def submit(self, owner: str, priority: int, sharded: bool, memory: int) -> None:
        execution = {"priority": priority, **({"shards": SEATS + 1} if sharded else {})}
        made = submit(self.database, owner=owner, execution=execution)
        with self.database.transaction() as session:
            of_it = RunRecord.experiment_id == made.id
            session.execute(update(RunRecord).where(of_it).values(memory_bytes=memory))

    def end(self) -> None:
        """The run that has been held longest ends."""
        if self.leading:
            worker = next(iter(self.leading))
            held = self.leading.pop(worker)
            write(self.database, lifecycle.cancel, held.experiment_id)
            write(self.database, groups.close, held)
            write(self.database, runs.release, held)

    def act(self, worker: str) -> None:
        """A step of a worker between two shards, or when it has nothing to do."""
        if worker in self.leading:
            return
        wanted = self.could_claim(worker)
        if worker in self.helping and self.stays(worker, wanted=wanted):
            return
        held = write(self.database, runs.claim, claimant(worker, memory_bytes=MEMORY[worker]), LEASE_S)
        assert (held is not None) is wanted
        if held is None:
            self.join(worker)
            return
        self.leading[worker] = held
        if held.spec["execution"].get("shards"):
            write(self.database, groups.announce, held, "127.0.0.1:1", SEATS)

    def stays(self, worker: str, *, wanted: bool) -> bool:
        """Renew the membership of a worker, or end it."""
        member = self.helping[worker]
        if member.run not in self.leading.values():
            del self.helping[worker]
            return False
        stays = write(self.database, groups.renew, member, LEASE_S, 1.0)
        assert stays is not wanted
        if not stays:
            write(self.database, groups.leave, self.helping.pop(worker))
        return stays

    def join(self, worker: str) -> None:
        before = self.rows()
        member = write(self.database, groups.join, claimant(worker, memory_bytes=MEMORY[worker]), LEASE_S)
        open_ = [
            run
            for run in before.values()
            if before.seats.get(run.id, 0) > before.members[run.id] and run.memory_bytes <= MEMORY[worker]
        ]
        assert (member is None) == (not open_)
        if member is None:
            return
        self.helping[worker] = member
        highest = [run for run in open_ if run.priority == max(other.priority for other in open_)]
        least = min(before.serving[run.owner] for run in highest)
        chosen = before[member.run.run_id]
        assert chosen in highest
        assert before.serving[chosen.owner] == least
        assert before.members[chosen.id] == min(
            before.members[run.id] for run in highest if run.owner == chosen.owner
        )

    def could_claim(self, worker: str) -> bool:
        queued = [run for run in self.rows().values() if run.status is Status.QUEUED]
        return any(run.memory_bytes <= MEMORY[worker] for run in queued)

    def rows(self) -> "Rows":
        with self.database.reading() as session:
            found = Rows({run.id: run for run in session.scalars(select(RunRecord))})
            found.seats = {group.run_id: group.seats for group in session.scalars(select(GroupRecord))}
            held = list(session.scalars(select(MemberRecord)))
        found.members = Counter(member.run_id for member in held)
        executing = [run for run in found.values() if run.status is Status.RUNNING]
        found.serving = Counter(run.owner for run in executing)
        found.serving += Counter(found[member.run_id].owner for member in held)
        workers = [*(run.worker for run in executing), *(member.worker for member in held)]
        assert len(workers) == len(set(workers)), "each worker does one thing"
        assert all(found.members[run_id] <= seats for run_id, seats in found.seats.items())
        assert all(found[member.run_id].memory_bytes <= MEMORY[member.worker] for member in held)
        return found


class Rows(dict[str, RunRecord]):
    """All runs, by id."""

    seats: dict[str, int]
    members: Counter[str]
    serving: Counter[str]
    """Workers by the owner whose runs they execute, or train shards of."""


@settings(max_examples=5)
@given(steps)
def test_groups_keep_no_worker_from_a_queued_run_and_share_the_others_fairly(
    sqlite_template: Path, kept_sqlite_file: Path, history: list[str | tuple[str, int, bool, int]]
) -> None:
    with copied_file(sqlite_template, kept_sqlite_file) as url:
        service = Service(kept_database(url))
        for step in history:
            if isinstance(step, tuple):
                service.submit(*step)
            elif step == "a run ends":
                service.end()
            else:
                service.act(step)
        for worker in MEMORY:
            service.act(worker)
        # No owner starves: a run only waits for workers that have runs.
        queued = [run for run in service.rows().values() if run.status is Status.QUEUED]
        free = MEMORY.keys() - service.leading.keys()
        assert not [run for run in queued for worker in free if run.memory_bytes <= MEMORY[worker]]
