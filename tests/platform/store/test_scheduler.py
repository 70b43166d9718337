"""Whose turn it is: priority, fair shares, age, queues; and when a run gives way."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, text, update

from fedcore.platform.access import Scope
from fedcore.platform.store import (
    Database,
    Session,
    Status,
    WorkerDirective,
    experiments,
    fair_share,
    keys,
    runs,
    scheduler,
    workers,
)
from fedcore.platform.store.clock import database_time
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.fair_share import FairShareState, OwnerQueue, RunCandidate, ScheduledRun
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.progress import oversized
from fedcore.platform.store.tables import KeyRecord, RunRecord, ShareRecord
from tests.builders.claims import LEASE_S, QUEUE, WORKER, claim, claimant, commit_slice, finish
from tests.builders.experiments import runs_of, submit
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import on_postgresql, read, write


def order(database: Database, *queues: str) -> list[str]:
    """The names of the experiments whose runs are taken, one after another, each by a worker that
    keeps it.
    """
    found: list[str] = []
    while held := write(database, runs.claim, claimant(f"worker-{len(found)}", *queues), LEASE_S):
        found.append(read(database, experiments.find, held.experiment_id).name)
    return found


def played(database: Database) -> str:
    """Take a run and play it to its end; its experiment's name."""
    held = claim(database)
    finish(database, held)
    return read(database, experiments.find, held.experiment_id).name


def test_a_higher_priority_goes_first_whatever_its_age(database: Database) -> None:
    for priority in (3, 9, 5):
        submit(database, name=f"priority {priority}", execution={"priority": priority})
    assert order(database) == ["priority 9", "priority 5", "priority 3"]


def test_owners_have_fair_shares(database: Database) -> None:
    for _ in range(3):
        submit(database, owner="ann", name="ann")
    submit(database, owner="bob", name="bob", seeds=[0, 1])
    assert order(database) == ["ann", "bob", "ann", "bob", "ann"]


def test_single_run_waits_for_one_turn_of_an_owner_who_has_many(database: Database) -> None:
    submit(database, owner="ann", name="ann", seeds=list(range(9)))
    finish(database, claim(database))
    submit(database, owner="bob", name="bob")
    names = [played(database) for _ in range(3)]
    assert sorted(names[:2]) == ["ann", "bob"]
    assert names[2] == "ann"


@on_postgresql
def test_workers_that_claim_at_the_same_moment_serve_different_owners(database: Database) -> None:
    owners = ["ann", "bob", "cem", "dan"]
    for seconds, owner in enumerate(owners):
        submit(database, owner=owner)
        submit(database, owner=owner)
        write(database, fair_share.add_seconds, WORKER, OwnerQueue(QUEUE, owner), float(seconds))

    def claimed(session: Session, worker: str) -> str:
        held = runs.claim(session, claimant(worker), LEASE_S)
        assert held is not None
        return runs.find(session, held.run_id).owner

    # None of these sees what the others have taken.
    with ExitStack() as stack:
        open_claims = [stack.enter_context(database.transaction()) for _ in owners]
        assert [claimed(session, f"w{number}") for number, session in enumerate(open_claims)] == owners
        with database.transaction() as fifth:
            assert claimed(fifth, "w4") in owners, "each is being served, so any of them has another run"
    clocks = read(database, fair_share.read_clocks, [QUEUE])
    assert clocks == {QUEUE: 0.0}, "ann, who has had the least, waits all the time"


def test_owners_get_the_same_seconds_from_one_worker(database: Database) -> None:
    submit(database, owner="ann", name="ann", seeds=list(range(9)), rounds=1)
    submit(database, owner="bob", name="bob", seeds=[0, 1], rounds=4)
    taken = [played(database) for _ in range(10)]
    assert taken.count("ann") == 4 * taken.count("bob")


def test_usage_of_owners_is_kept_when_the_workers_leave_that_noted_it(database: Database) -> None:
    submit(database, owner="ann", name="ann", seeds=[0, 1])
    submit(database, owner="bob", name="bob", seeds=[0, 1])
    played(database)
    write(database, workers.gone, WORKER)
    before = read(database, fair_share.read_usage, [QUEUE])
    write(database, workers.gone, "gone")
    assert read(database, fair_share.read_usage, [QUEUE]) == before
    assert before[0][OwnerQueue(QUEUE, "ann")].seconds == 2.0
    assert played(database) == "bob"


@pytest.mark.parametrize("noted", [{"ann": 3.0, "zoe": 1.0}, {"ann": 1.0, "zoe": 3.0}])
def test_the_clock_of_a_queue_is_the_latest_that_was_noted_for_whichever_owner(
    database: Database, noted: dict[str, float]
) -> None:
    at = read(database, database_time)
    for owner, clock in noted.items():
        taken = RunCandidate(OwnerQueue(QUEUE, owner), "", 5, at, owner)
        write(database, fair_share.record_pick, WORKER, ScheduledRun(taken, 0.0, clock))
    assert read(database, fair_share.read_usage, [QUEUE])[1] == {QUEUE: 3.0}
    assert read(database, fair_share.read_clocks, [QUEUE]) == {QUEUE: 3.0}


def test_experiments_of_one_owner_have_fair_shares(database: Database) -> None:
    submit(database, name="first", seeds=[0, 1, 2])
    submit(database, name="second", seeds=[0, 1])
    assert order(database) == ["first", "second", "first", "second", "first"]


def test_among_equals_the_longest_waiting_goes_first(database: Database) -> None:
    for name in ("first", "second"):
        submit(database, name=name)
    held = claim(database)
    write(database, runs.release, held)
    assert order(database) == ["second", "first"]


def test_runs_are_taken_from_the_given_queues_only(database: Database) -> None:
    for queue in ("cpu", "gpu", "large"):
        submit(database, name=queue, execution={"queue": queue})
    assert order(database, "gpu", "large") == ["gpu", "large"]
    assert order(database, "none") == []


@pytest.mark.parametrize(
    ("priority", "turn_over", "control"),
    [
        (4, False, "continue"),
        (4, True, "continue"),
        (5, False, "continue"),
        (5, True, "yield"),
        (6, False, "yield"),
        (6, True, "yield"),
    ],
)
def test_a_run_yields_to_a_higher_priority_at_once_and_to_an_equal_one_when_its_turn_is_over(
    database: Database, priority: int, turn_over: bool, control: str
) -> None:
    submit(database, execution={"priority": 5})
    held = claim(database)
    submit(database, execution={"priority": 9, "queue": "other"})
    assert commit_slice(database, held, turn_over=turn_over) == "continue"
    submit(database, execution={"priority": priority})
    assert commit_slice(database, held.at(1, "key"), turn_over=turn_over) == control


def test_a_priority_lowered_while_a_run_is_played_counts_at_its_next_commit(database: Database) -> None:
    first = submit(database)
    held = claim(database)
    submit(database)
    write(database, experiments.edit, first.id, priority=1)
    assert commit_slice(database, held) is WorkerDirective.YIELD


OWNERS = 50
"""Owners of the random queues below."""


def fill_queues(database: Database, draw: Random, exhausted: int) -> None:
    """Write runs in any state of many owners, their keys and their use of the queues.

    Every third owner has had the least, and is served. Of the next ones so many have keys without
    compute seconds: they come first, but none of them may be taken.
    """
    for _ in range(4):
        submit(database)
    with database.transaction() as session:
        at = database_time(session)
        templates = [dict(row) for row in session.execute(select(RunRecord.__table__)).mappings()]
        session.execute(delete(RunRecord))
        owners = [f"owner-{number}" for number in range(OWNERS)]
        key = keys.create(session, owner="ann", scope=Scope.SUBMIT)[0]
        (columns,) = session.execute(select(KeyRecord.__table__).where(KeyRecord.id == key.id)).mappings()
        served, others = owners[::3], [owner for number, owner in enumerate(owners) if number % 3]
        for owner in owners:
            spent = owner in others[:exhausted]
            for name in "ab":
                limits = {
                    "max_running_runs": draw.choice([None, None, 1, 2]),
                    "max_compute_seconds": 0.0 if spent else None,
                }
                key_id = {"id": f"key_{owner}_{name}", "owner": owner}
                session.execute(insert(KeyRecord), [{**columns, **key_id, **limits}])
            for queue in "xy":
                seconds = (
                    draw.choice([3.0, 4.0]) if owner in served else 5.0 if spent else draw.choice([6.0, 9.0])
                )
                used = {"seconds": seconds, "lift": draw.choice([0.0, 0.5])}
                used |= {"clock": draw.choice([0.0, 2.0])}
                place = {"queue": queue, "owner": owner, "source": draw.choice([WORKER, "another"])}
                session.add(ShareRecord(**place, **used))
        rows = []
        for number in range(250):
            owner = draw.choice(owners)
            further = Status.RUNNING if owner in served else Status.PAUSED
            status = draw.choice([Status.QUEUED, Status.QUEUED, further])
            changes = {
                "id": f"run_{draw.getrandbits(40):010x}",
                "owner": owner,
                "key_id": draw.choice([f"key_{owner}_a", f"key_{owner}_b"]),
                "queue": draw.choice("xyz"),
                "priority": draw.choice([4, 5, 5, 5]),
                "status": status,
                "worker": f"worker-{number % 7}" if status is Status.RUNNING else None,
                "queued_at": at - timedelta(seconds=draw.randint(0, 5)),
                "not_before": draw.choice([None, None, None, at + timedelta(minutes=2)]),
                "memory_bytes": draw.choice([1, 1, 1, 9]),
            }
            rows.append(draw.choice(templates) | changes)
        session.execute(insert(RunRecord), rows)


def candidates_by_full_scan(session: Session, but: str | None) -> list[RunCandidate]:
    """Of each owner and key in the queues x and y the best run that a worker with a memory of 5 bytes may
    take, as all runs and keys tell one by one; runs of the worker `but` do not count for quotas.
    """
    known = {key.id: key for key in session.scalars(select(KeyRecord))}
    held, best = Counter[str](), dict[tuple[str, str, str], RunRecord]()
    every = session.scalars(
        select(RunRecord).order_by(
            RunRecord.priority.desc(), RunRecord.experiment_id, RunRecord.queued_at, RunRecord.id
        )
    ).all()
    for run in every:
        held[run.key_id] += run.status is Status.RUNNING and run.worker != but
        waits = run.status is Status.QUEUED and run.not_before is None and run.memory_bytes <= 5
        if waits and run.queue in "xy":
            best.setdefault((run.queue, run.owner, run.key_id), run)
    return [
        RunCandidate(OwnerQueue(run.queue, run.owner), run.key_id, run.priority, run.queued_at, run.id)
        for run in best.values()
        if known[run.key_id].max_compute_seconds is None
        and held[run.key_id] < (known[run.key_id].max_running_runs or 1_000)
    ]


def choice_by_full_scan(session: Session, queues: Sequence[str]) -> ScheduledRun | None:
    """The candidate to be chosen, in the order in which all of them come."""
    accounts, clocks = fair_share.read_usage(session, queues)
    served = {(run.place, run.worker) for run in scheduler.running(session)}
    books = FairShareState(queues, accounts, clocks, Counter(place for place, _ in served))
    return fair_share.choose_candidate(candidates_by_full_scan(session, None), books)


@pytest.mark.parametrize("exhausted", [0, 20])
def test_the_choice_is_that_of_a_full_scan(database: Database, exhausted: int) -> None:
    draw, queues = Random(1), ["x", "y", "none"]
    fill_queues(database, draw, exhausted)
    for number in range(12):
        expected = read(database, choice_by_full_scan, queues)
        held = write(database, runs.claim, claimant(WORKER, *queues, memory_bytes=5), LEASE_S)
        if held is None or expected is None:
            assert held is None
            assert expected is None
            break
        run = read(database, runs.find, held.run_id)
        flow = expected.flow
        assert (run.queue, run.owner, run.key_id, run.priority) == (*flow.place, flow.key_id, flow.priority)
        note = read(database, recorded_pick, flow.place)
        assert (note.lift, note.clock) == (expected.lift, expected.clock)
        write(database, fair_share.add_seconds, WORKER, flow.place, draw.choice([0.5, 1.0]))
        if number % 3:
            finish(database, held)


def recorded_pick(session: Session, place: OwnerQueue) -> ShareRecord:
    """The note of the worker about an owner."""
    record = session.get(ShareRecord, (*place, WORKER))
    assert record is not None
    return record


def test_a_run_gives_way_if_a_full_scan_finds_one_that_comes_first(database: Database) -> None:
    fill_queues(database, Random(2), 20)
    asking = WORKER, "worker-1"
    # Runs of keys that have as many running as they may would come before all others.
    with database.transaction() as session:
        full = (
            select(KeyRecord.id)
            .join(RunRecord, RunRecord.key_id == KeyRecord.id)
            .where(RunRecord.status == Status.RUNNING, RunRecord.worker.not_in(asking))
            .group_by(KeyRecord.id)
            .having(func.count() >= func.max(KeyRecord.max_running_runs))
        )
        of_full = RunRecord.status == Status.QUEUED, RunRecord.key_id.in_(full)
        session.execute(update(RunRecord).where(*of_full).values(priority=6))
    for worker in asking:
        with database.reading() as session:
            found = candidates_by_full_scan(session, worker)
            highest = max(flow.priority for flow in found)
            for priority in (highest - 1, highest, highest + 1):
                for turn_over in (False, True):
                    least = priority if turn_over else priority + 1
                    asked = claimant(worker, "x", "y", memory_bytes=5), priority
                    first = scheduler.should_preempt(session, *asked, turn_over=turn_over)
                    assert first == (highest >= least)


def test_a_claim_among_thousands_of_runs_reads_an_index_only(database: Database) -> None:
    """By the plan: no statement of a claim reads the table of runs from end to end, or sorts it."""
    experiment = submit(database, owner="ann")
    submit(database, owner="bob")
    with database.transaction() as session:
        (run,) = session.execute(
            select(RunRecord.__table__).where(RunRecord.experiment_id == experiment.id)
        ).mappings()
        session.execute(
            insert(RunRecord), [{**run, "id": f"{run['id']}_{number}"} for number in range(3_000)]
        )
        postgresql = session.get_bind().dialect.name == "postgresql"
        if postgresql:
            session.execute(text("ANALYZE"))
    with database.transaction() as session:
        statements: list[tuple[str, Any]] = []
        event.listen(
            session.connection(),
            "before_cursor_execute",
            lambda *given: statements.append((given[2], given[3])),
        )
        assert runs.claim(session, claimant(WORKER, QUEUE, "other"), LEASE_S) is not None
        # What is asked of the table of runs; what follows the choice goes by ids.
        asked = [
            given
            for given in statements
            if given[0].startswith(("SELECT", "WITH")) and "webhook" not in given[0]
        ]
        explain = "EXPLAIN " if postgresql else "EXPLAIN QUERY PLAN "
        plans = {
            statement: [
                str(row[-1]) for row in session.connection().exec_driver_sql(explain + statement, given)
            ]
            for statement, given in asked
        }
    steps = [step for plan in plans.values() for step in plan]
    assert any("run_by_turn" in step for step in steps)
    assert not [
        step for step in steps if re.search(r"Seq Scan on run\b|SCAN (run|start|after|following)\b", step)
    ]
    # The candidates, one of each owner and key, are sorted, but no runs that wait.
    by_index = [plan for statement, plan in plans.items() if not re.search(r"\bfound AS\b", statement)]
    assert len(by_index) == len(plans) - 1
    assert not [step for plan in by_index for step in plan if re.search(r"TEMP B-TREE|Sort Key: run", step)]


# A run that needs more memory than a worker has is never sent to it.

GIB = 1 << 30


def queued(database: Database, *needed: int, **changes: object) -> str:
    """An experiment with an arm of each of these needs; its id."""
    sweep = {"local.lr": [0.1 * (number + 1) for number in range(len(needed))]}
    spec = specification(ONE_RUN, sweep=sweep, **changes)
    return write(database, experiments.create, NewExperiment(spec, memory_bytes=needed)).record.id


def taken(database: Database, memory: int) -> Claim | None:
    """Run that a worker with so much memory takes."""
    return write(database, runs.claim, claimant(memory_bytes=memory), LEASE_S)


def test_a_worker_takes_runs_that_fit_its_memory_and_leaves_the_rest_to_larger_ones(
    database: Database,
) -> None:
    queued(database, 8 * GIB, 2 * GIB, execution={"priority": 9})
    queued(database, 1 * GIB)
    found = [taken(database, 4 * GIB) for _ in range(3)]
    assert [held and held.memory_bytes for held in found] == [2 * GIB, 1 * GIB, None]
    held = taken(database, 8 * GIB)
    assert held is not None
    assert held.memory_bytes == 8 * GIB


def test_a_run_of_unknown_need_goes_anywhere(database: Database) -> None:
    submit(database)
    assert taken(database, 1) is not None


@pytest.mark.parametrize(("memory", "control"), [(4 * GIB, "continue"), (8 * GIB, "yield")])
def test_a_run_gives_way_only_to_runs_that_fit_the_memory_of_its_worker(
    database: Database, memory: int, control: str
) -> None:
    queued(database, 1 * GIB)
    held = taken(database, memory)
    assert held is not None
    queued(database, 6 * GIB, execution={"priority": 9})
    assert commit_slice(database, held) == control


@pytest.mark.parametrize(("memory", "beside"), [(1, 0), (3, 0), (4, 1), (6, 2), (100, 3)])
def test_a_batch_is_no_larger_than_memory_allows(database: Database, memory: int, beside: int) -> None:
    queued(database, 2 * GIB, 2 * GIB, 2 * GIB, 1 * GIB)
    held = taken(database, max(memory, 2) * GIB)
    assert held is not None
    mates = write(database, runs.claim_batch, held, [0, 1, 2, 3], 7, lease_s=LEASE_S, seen_s=LEASE_S)
    assert len(mates) == beside
    assert held.memory_bytes + sum(mate.memory_bytes for mate in mates) <= held.claimant.memory_bytes


def test_waiting_runs_that_are_too_large_are_counted_by_queue(database: Database) -> None:
    queued(database, 8 * GIB, 2 * GIB, 9 * GIB)
    assert read(database, oversized, {QUEUE: 4 * GIB, "other": 0}) == {QUEUE: 2, "other": 0}


def test_a_worker_says_how_much_memory_it_has(database: Database) -> None:
    about: dict[str, Any] = {"host": "here", "pid": 1, "queues": [QUEUE], "device": "cpu", "run_id": None}
    write(database, workers.seen, WORKER, **about, memory_bytes=4 * GIB)
    assert [worker.memory_bytes for worker in read(database, workers.alive, 60.0)] == [4 * GIB]


def test_needs_are_kept_by_arm(database: Database) -> None:
    made = read(database, experiments.find, queued(database, 3 * GIB, 5 * GIB, seeds=[0, 1]))
    assert [run.memory_bytes // GIB for run in runs_of(database, made)] == [3, 3, 5, 5]
