"""Curves of runs: the rows, measure by measure, whether they are in blocks or not yet."""

from collections.abc import Sequence
from math import nan
from typing import Any

import pytest
from sqlalchemy import delete, func, select

from fedcore.platform.store import Database, curves, experiments
from fedcore.platform.store.blocks import SIZE
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import BlockRecord
from fedcore.simulation.report import RoundReport
from tests.builders.claims import claim, commit, commit_slice, report
from tests.builders.experiments import submit
from tests.builders.transactions import read, write

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
    # Of the two blocks' measures: loss, steps, bytes up and down and seconds in both, the late one
    # in the second.
    assert blocks(database) == 2 * 5 + 1


def test_the_rows_are_read_where_blocks_are_missing_and_later_rounds_write_them(database: Database) -> None:
    submit(database, rounds=ROUNDS)
    reports = history(ROUNDS)
    held = play(database, claim(database), reports[: 2 * SIZE - 1])
    # As a version that knew no blocks would have left it.
    write(database, lambda session: session.execute(delete(BlockRecord)))
    assert column(database, held, "train_loss") == [one.train_loss for one in reports[: held.done]]
    held = play(database, held, reports[held.done :])
    assert blocks(database) == 2 * 5 + 1
    assert column(database, held, "train_loss") == [one.train_loss for one in reports]


def test_a_block_between_gaps_is_not_taken_for_the_beginning(database: Database) -> None:
    submit(database, rounds=ROUNDS)
    reports = history(ROUNDS)
    held = play(database, claim(database), reports)
    write(database, lambda session: session.execute(delete(BlockRecord).where(BlockRecord.first == 1)))
    assert column(database, held, "train_loss") == [one.train_loss for one in reports]


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
