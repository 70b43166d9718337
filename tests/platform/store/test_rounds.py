"""The rows of a run's curve: exactly once, finite, read from any round on."""

from math import inf, nan
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from fedcore.platform.store import Database, curves, runs
from fedcore.platform.store.leases import Claim
from tests.builders.claims import LEASE_S, claim, commit, report
from tests.builders.experiments import submit
from tests.builders.transactions import read, write


def commit_with(database: Database, held: Claim, **values: Any) -> Claim:
    """Commit one round whose report has `values`."""
    write(
        database,
        runs.commit_slice,
        held,
        [report(held.done + 1, **values)],
        checkpoint="key",
        lease_s=LEASE_S,
        provenance={},
    )
    return held.at(held.done + 1, "key")


def played(database: Database, count: int, **changes: Any) -> list[Claim]:
    """`count` claimed runs of new experiments, the first with one round, the next with two, and so
    on.
    """
    return [commit(database, claim_new(database, **changes), number) for number in range(1, count + 1)]


def claim_new(database: Database, **changes: Any) -> Claim:
    """A claim on the only run of a new experiment."""
    submit(database, **changes)
    return claim(database)


def numbers(rows: Any) -> list[tuple[str, int]]:
    return [(row.run_id, row.round) for row in rows]


def test_a_row_says_what_was_reported(database: Database) -> None:
    held = claim_new(database)
    values = {
        "train_loss": 0.1 + 0.2,
        "test_loss": 1e-300,
        "test_accuracy": 1.0,
        "local_steps": 2**40,
        "bytes_up": 2**50,
    }
    commit_with(database, held, **values, extra={"objective": -1.5, "x": [0.1, -2.0]})
    (row,) = read(database, curves.after, held.run_id)
    assert {name: getattr(row, name) for name in values} == values
    assert (row.round, row.bytes_down, row.seconds, row.extra) == (
        1,
        200,
        0.5,
        {"objective": -1.5, "x": [0.1, -2.0]},
    )


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_values_that_are_not_finite_are_stored_as_absent(database: Database, value: float) -> None:
    held = commit_with(
        database,
        claim_new(database),
        train_loss=value,
        test_loss=2.0,
        extra={"objective": value, "x": [1.0, value]},
    )
    (row,) = read(database, curves.after, held.run_id)
    assert (row.train_loss, row.test_loss, row.test_accuracy, row.extra) == (
        None,
        2.0,
        None,
        {"objective": None, "x": [1.0, None]},
    )


def test_a_round_is_stored_once(database: Database) -> None:
    held = commit(database, claim_new(database))
    with pytest.raises(IntegrityError):
        write(database, curves.append_rounds, held.run_id, [report(1)])


def test_rows_are_committed_with_their_run_or_not_at_all(database: Database) -> None:
    held = claim_new(database)
    with pytest.raises(AssertionError, match=r"rounds \[1, 3\]"):
        write(
            database,
            runs.commit_slice,
            held,
            [report(1), report(3)],
            checkpoint="key",
            lease_s=LEASE_S,
            provenance={},
        )
    assert read(database, curves.after, held.run_id) == []
    assert read(database, runs.find, held.run_id).done == 0


def test_rows_are_read_from_any_round_on(database: Database) -> None:
    held = commit(database, claim_new(database), 4)
    assert numbers(read(database, curves.after, held.run_id, 2)) == [(held.run_id, 3), (held.run_id, 4)]
    assert numbers(read(database, curves.after, held.run_id, 0, 2)) == [(held.run_id, 1), (held.run_id, 2)]
    assert read(database, curves.after, held.run_id, 4) == []
    assert read(database, curves.after, "run_none") == []


def test_each_run_is_read_from_its_own_round_on(database: Database) -> None:
    one, two, three = (held.run_id for held in played(database, 3))
    assert numbers(read(database, curves.after_many, {one: 0, two: 2, three: 1})) == [
        (one, 1),
        (three, 2),
        (three, 3),
    ]
    assert read(database, curves.after_many, {}) == []


def test_readers_that_follow_their_cursors_see_every_row_once(database: Database) -> None:
    held = played(database, 4)
    cursors, seen = dict.fromkeys((one.run_id for one in held), 0), []
    while rows := read(database, curves.after_many, cursors, 3):
        assert len(rows) <= 3
        seen += numbers(rows)
        cursors |= dict(numbers(rows))
    assert seen == [(one.run_id, round) for one in held for round in range(1, one.done + 1)]


def test_more_runs_can_be_followed_than_one_query_can_name(database: Database) -> None:
    held = commit(database, claim_new(database))
    strangers = {f"run_{number}": 0 for number in range(5_000)}
    assert numbers(read(database, curves.after_many, strangers | {held.run_id: 0})) == [(held.run_id, 1)]
