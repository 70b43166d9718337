"""The rows of a run's curve: exactly once, finite, read from any round on."""

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import pytest
from sqlalchemy import func, select

from fedcore.platform.store import Database, curves, experiments, runs
from fedcore.platform.store.blocks import FULL
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import BlockRecord
from fedcore.simulation.report import RoundReport
from tests.builders.claims import LEASE_S, claim, commit, commit_slice, report
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
        extra={"objective": value, "x": [1.0, value], "matrix": [[value, 2.0]]},
    )
    (row,) = read(database, curves.after, held.run_id)
    assert (row.train_loss, row.test_loss, row.test_accuracy, row.extra) == (
        None,
        2.0,
        None,
        {"objective": None, "x": [1.0, None], "matrix": [[None, 2.0]]},
    )


def test_a_round_is_stored_once(database: Database) -> None:
    held = commit(database, claim_new(database))
    with pytest.raises(AssertionError, match="round 1 does not follow round 1"):
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


# Curves of runs: their rounds, measure by measure.

SIZE = 200
ROUNDS = 2 * SIZE + 7


def play(database: Database, held: Claim, reports: Sequence[RoundReport]) -> Claim:
    commit_slice(database, held, reports)
    return held.at(reports[-1].round, "key")


def column(database: Database, held: Claim, metric: str) -> list[float | None]:
    return read(database, curves.of_runs, [held.run_id], metric)[held.run_id].listed(metric)


def blocks(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(BlockRecord)) or 0


def test_curves_have_the_measures_asked_for_by_run(database: Database) -> None:
    submit(database, seeds=[0, 1, 2])
    first = play(database, claim(database), [report(1, test_accuracy=0.5, extra={"objective": 3.0})])
    play(database, first, [report(2, extra={"objective": nan, "x": [1.0]})])
    second = play(database, claim(database), [report(1, test_accuracy=0.25)])
    metrics = ("test_accuracy", "objective", "x", "bytes_up")
    found = read(database, curves.of_runs, [second.run_id, first.run_id, "run_none"], *metrics)
    assert {run_id: (list(curve.rounds), *map(curve.listed, metrics)) for run_id, curve in found.items()} == {
        first.run_id: ([1, 2], [0.5, None], [3.0, None], [None, None], [300, 300]),
        second.run_id: ([1], [0.25], [None], [None], [300]),
    }
    assert found[first.run_id].total("bytes_up") == 600
    assert found[first.run_id].total("objective") == 3
    assert [found[first.run_id].bounds(metric) for metric in ("bytes_up", "objective", "x")] == [
        [300, 300],
        [3, 3],
        [],
    ]
    assert [found[first.run_id].ending(metric) for metric in ("bytes_up", "objective", "x")] == [
        [300, 300],
        [3, None],
        [None, None],
    ]


@pytest.mark.parametrize("metric", ["a.b", "a b", "$", "per-client"])
def test_a_measure_may_have_any_name(database: Database, metric: str) -> None:
    submit(database)
    held = play(database, claim(database), [report(1, extra={metric: 2.5, "a": 1.0})])
    assert column(database, held, metric) == [2.5]


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, -1.7976931348623157e308, 3, 0])
@pytest.mark.parametrize("played", [1, SIZE])
def test_a_measure_is_read_to_the_last_bit(database: Database, value: float, played: int) -> None:
    submit(database, rounds=played)
    held = play(
        database,
        claim(database),
        [report(round, extra={"objective": value}) for round in range(1, played + 1)],
    )
    assert column(database, held, "objective") == [value] * played


def history(length: int) -> list[RoundReport]:
    """Evaluated every third round, a measure that begins late, and a list, which is no curve."""
    return [
        report(
            round,
            train_loss=1 / round if round % 3 == 0 else None,
            extra={"late": float(round), "x": [1.0]} if round > SIZE else {},
        )
        for round in range(1, length + 1)
    ]


@pytest.mark.parametrize(
    "slices", [[ROUNDS], [1, SIZE - 1, SIZE, 7], [SIZE - 1, 2, SIZE + 6], [3, ROUNDS - 3]]
)
def test_a_curve_is_the_same_however_its_rounds_were_committed(database: Database, slices: list[int]) -> None:
    submit(database, rounds=ROUNDS)
    held, reports = claim(database), history(ROUNDS)
    for length in slices:
        held = play(database, held, reports[held.done : held.done + length])
    assert column(database, held, "train_loss") == [one.train_loss for one in reports]
    assert column(database, held, "late") == [one.extra.get("late") for one in reports]
    assert column(database, held, "x") == [None] * ROUNDS
    assert column(database, held, "bytes_down") == [200] * ROUNDS
    # Seven columns in 200 rounds, nine measures in the others, rounded up.
    assert blocks(database) == (7 * SIZE + 9 * (ROUNDS - SIZE)) // FULL + 1


def test_blocks_go_with_their_experiment(database: Database) -> None:
    experiment = submit(database, rounds=ROUNDS)
    commit(database, claim(database), SIZE)
    assert blocks(database)
    write(database, experiments.delete, experiment.id)
    assert blocks(database) == 0


def test_more_runs_can_be_read_than_one_query_can_name(database: Database) -> None:
    submit(database)
    held = commit(database, claim(database))
    strangers: list[Any] = [f"run_{number}" for number in range(5_000)]
    assert list(read(database, curves.of_runs, [*strangers, held.run_id], "bytes_up")) == [held.run_id]
