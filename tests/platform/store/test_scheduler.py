"""Whose turn it is: priority, fair shares, age, queues; and when a run gives way."""

import re
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, func, insert, select, text, update

from fedcore.platform.store import (
    Database,
    Session,
    Status,
    WorkerDirective,
    experiments,
    fair_share,
    runs,
    scheduler,
    workers,
)
from fedcore.platform.store.fair_share import OwnerQueue
from fedcore.platform.store.tables import RunRecord, ShareRecord
from tests.platform.store.acts import LEASE_S, QUEUE, WORKER, claim, commit, finish, play, read, submit, write


def order(database: Database, *queues: str) -> list[str]:
    """The names of the experiments whose runs are taken, one after another, each by a worker that
    keeps it.
    """
    found: list[str] = []
    while held := write(database, runs.claim, f"worker-{len(found)}", queues or [QUEUE], LEASE_S):
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


def test_one_run_waits_for_one_turn_of_somebody_who_has_many(database: Database) -> None:
    submit(database, owner="ann", name="ann", seeds=list(range(9)))
    finish(database, claim(database))
    submit(database, owner="bob", name="bob")
    names = [played(database) for _ in range(3)]
    assert sorted(names[:2]) == ["ann", "bob"]
    assert names[2] == "ann"


def test_owners_get_the_same_seconds_from_one_worker(database: Database) -> None:
    submit(database, owner="ann", name="ann", seeds=list(range(9)), rounds=1)
    submit(database, owner="bob", name="bob", seeds=[0, 1], rounds=4)
    taken = [played(database) for _ in range(10)]
    assert taken.count("ann") == 4 * taken.count("bob")


def test_what_owners_had_is_kept_when_the_workers_leave_that_noted_it(database: Database) -> None:
    submit(database, owner="ann", name="ann", seeds=[0, 1])
    submit(database, owner="bob", name="bob", seeds=[0, 1])
    played(database)
    write(database, workers.gone, WORKER)
    before = read(database, fair_share.read_usage, "another", [QUEUE])
    write(database, workers.gone, "gone")
    assert read(database, fair_share.read_usage, "another", [QUEUE]) == before
    assert before[0][OwnerQueue(QUEUE, "ann")].seconds == 2.0
    assert played(database) == "bob"


def test_usage_that_was_added_up_is_the_same_usage(database: Database) -> None:
    for number, owner in enumerate(("ada", "bob", "ada")):
        submit(database, owner=owner)
        commit(database, claim(database, f"worker-{number}"), 2)
    before, clocks, _ = read(database, fair_share.read_usage, "another", [QUEUE])
    write(database, fair_share.compact, 3)
    assert read(database, _usage_rows) == 3, "not more than three: they stay"
    write(database, fair_share.compact, 2)
    assert read(database, _usage_rows) == 2
    assert read(database, fair_share.read_usage, "another", [QUEUE])[:2] == (before, clocks)


def _usage_rows(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(ShareRecord)) or 0


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
    assert play(database, held, turn_over=turn_over) == "continue"
    submit(database, execution={"priority": priority})
    assert play(database, held.at(1, "key"), turn_over=turn_over) == control


def test_a_priority_lowered_while_a_run_is_played_counts_at_its_next_commit(database: Database) -> None:
    first = submit(database)
    held = claim(database)
    submit(database)
    write(database, experiments.edit, first.id, priority=1)
    assert play(database, held) is WorkerDirective.YIELD


def test_the_best_of_each_owner_and_key_is_found_whatever_else_there_is(database: Database) -> None:
    """Against a look at every run."""
    draw = Random(5)
    for number in range(40):
        experiment = submit(
            database,
            owner=draw.choice("abc"),
            execution={"queue": draw.choice(["x", "y", "z"]), "priority": draw.randint(4, 6)},
        )
        changes = {
            "key_id": draw.choice(["", "key_1", "key_2"]),
            "status": draw.choice([Status.QUEUED] * 3 + [Status.PAUSED]),
        }
        with database.transaction() as session:
            session.execute(update(RunRecord).where(RunRecord.experiment_id == experiment.id).values(changes))
        if number % 10 == 9:
            wanted: dict[tuple[str, str, str], RunRecord] = {}
            with database.reading() as session:
                found = scheduler.candidates(session, ["x", "y", "none"])
                for run in session.scalars(
                    select(RunRecord).order_by(RunRecord.priority.desc(), RunRecord.id)
                ):
                    if run.status is Status.QUEUED and run.queue != "z":
                        wanted.setdefault((run.queue, run.owner, run.key_id), run)
            assert {(*flow.place, flow.key_id): flow.run_id for flow in found} == {
                place: run.id for place, run in wanted.items()
            }
            assert len(found) == len(wanted)


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
        assert runs.claim(session, WORKER, [QUEUE, "other"], LEASE_S) is not None
        # What is asked of the table of runs; what follows the choice goes by ids.
        asked = [
            given
            for given in statements
            if given[0].startswith(("SELECT", "WITH")) and "webhook" not in given[0]
        ]
        explain = "EXPLAIN " if postgresql else "EXPLAIN QUERY PLAN "
        plans = [
            session.connection().exec_driver_sql(explain + statement, given) for statement, given in asked
        ]
        steps = [str(row[-1]) for plan in plans for row in plan]
    assert any("run_by_turn" in step for step in steps)
    assert not [
        step
        for step in steps
        if re.search(r"Seq Scan on run\b|SCAN (run|after|best)\b|TEMP B-TREE|Sort Key: run", step)
    ]
