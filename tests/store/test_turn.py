"""Whose turn it is: priority, fair shares, age, queues; and when a run gives way."""

import pytest

from fedcore.store import Control, Database, experiments, runs
from tests.store.acts import LEASE_S, QUEUE, WORKER, claim, play, read, submit, write


def order(database: Database, *queues: str) -> list[str]:
    """The names of the experiments whose runs are taken, one after another, by workers that keep them."""
    found = []
    while held := write(database, runs.claim, WORKER, queues or [QUEUE], LEASE_S):
        found.append(read(database, experiments.find, held.experiment_id).name)
    return found


def test_a_higher_priority_goes_first_whatever_its_age(database: Database) -> None:
    for priority in (3, 9, 5):
        submit(database, name=f"priority {priority}", execution={"priority": priority})
    assert order(database) == ["priority 9", "priority 5", "priority 3"]


def test_owners_have_fair_shares(database: Database) -> None:
    for _ in range(3):
        submit(database, owner="ann", name="ann")
    submit(database, owner="bob", name="bob", seeds=[0, 1])
    assert order(database) == ["ann", "bob", "ann", "bob", "ann"]


def test_experiments_of_one_owner_have_fair_shares(database: Database) -> None:
    submit(database, name="first", seeds=[0, 1, 2])
    submit(database, name="second", seeds=[0, 1])
    assert order(database) == ["first", "second", "first", "second", "first"]


def test_among_equals_the_longest_waiting_goes_first(database: Database) -> None:
    for name in ("first", "second"):
        submit(database, name=name)
    held = claim(database)
    write(database, runs.hand_back, held)
    assert order(database) == ["second", "first"]


def test_runs_are_taken_from_the_given_queues_only(database: Database) -> None:
    for queue in ("cpu", "gpu", "large"):
        submit(database, name=queue, execution={"queue": queue})
    assert order(database, "gpu", "large") == ["gpu", "large"]
    assert order(database, "none") == []


@pytest.mark.parametrize(
    ("priority", "turn_over", "control"),
    [(4, False, "continue"), (4, True, "continue"), (5, False, "continue"), (5, True, "yield"), (6, False, "yield"), (6, True, "yield")],
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
    assert play(database, held) is Control.YIELD
