"""Groups: which idle workers train shards of which runs, and for how long."""

from typing import Any

import pytest

from fedcore.errors import StaleLeaseError
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, experiments, fair_share, groups, keys, quotas, runs
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.fair_share import OwnerQueue
from fedcore.platform.store.groups import Membership
from fedcore.platform.store.leases import Claim
from tests.documents import Document, specification
from tests.platform.store.acts import LEASE_S, ONE_RUN, QUEUE, claim, read, submit, write

SHARDED: Document = {"execution": {"shards": 4}}


def announced(database: Database, worker: str = "leader", seats: int = 3, **changes: Any) -> Claim:
    submit(database, **SHARDED, **changes)
    held = claim(database, worker)
    write(database, groups.announce, held, "127.0.0.1:1", seats)
    return held


def join(database: Database, worker: str, **about: Any) -> Membership | None:
    return write(database, groups.join, worker, [QUEUE], LEASE_S, **about)


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
    assert join(database, "small", worker_memory=-1) is None


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
    write(database, experiments.pause, other.id)
    assert join(database, "idle") is not None


def test_a_seat_whose_lease_has_expired_is_free(database: Database) -> None:
    announced(database, seats=1)
    write(database, groups.join, "frozen", [QUEUE], -1.0)
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
    write(database, experiments.cancel, second.experiment_id)
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
    usage, _, _ = read(database, fair_share.read_usage, "idle", [QUEUE])
    assert usage[OwnerQueue(QUEUE, "local")].seconds == 7.0


def test_groups_are_listed_with_their_members_and_the_shards_of_each(database: Database) -> None:
    held = announced(database)
    join(database, "idle")
    write(database, groups.record_shards, held, {"leader": 3, "idle": 1})
    (group,) = read(database, groups.list_groups, 10)
    assert (group.run_id, group.name, group.owner, group.leader) == (
        held.run_id,
        "one run",
        "local",
        "leader",
    )
    assert (group.members, group.shards, group.trained) == (["idle"], 4, {"leader": 3, "idle": 1})
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
    usage, _, _ = read(database, fair_share.read_usage, "idle", [QUEUE])
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
