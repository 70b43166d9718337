"""Rows of finished runs leave their table and are read again as they were."""

from collections.abc import Sequence
from math import nan
from typing import Any

import pytest
from sqlalchemy import func, select

from fedcore.platform.store import Database, blocks, curves, experiments, extension, reproductions, runs
from fedcore.platform.store.blocks import SIZE
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.reproductions import Pair, RowDifference
from fedcore.platform.store.tables import PackedRecord, RoundRecord
from fedcore.simulation.report import COLUMNS, RoundReport
from tests.builders.claims import claim, commit_slice, finish, report
from tests.builders.experiments import submit
from tests.builders.transactions import read, write

ROUNDS = 2 * SIZE + 50
LARGE = 2**53 + 1
"""Not a float64."""


def history(first: int = 1, last: int = ROUNDS, **extra: float) -> list[RoundReport]:
    """Rounds with all that a block of numbers does not have."""
    return [
        report(
            round,
            bytes_up=LARGE if round == 7 else round,
            train_loss=1 / round,
            test_accuracy=0.5 if round % 3 == 0 else None,
            extra={
                "objective": nan if round == 9 else -0.0,
                "x": [1.0 / round, nan],
                "count": round,
                **extra,
            },
        )
        for round in range(first, last + 1)
    ]


def played(database: Database, reports: Sequence[RoundReport], rounds: int = ROUNDS) -> Claim:
    """A new run with these rounds."""
    submit(database, rounds=rounds)
    held = claim(database)
    commit_slice(database, held, reports)
    return held.at(reports[-1].round, "key")


def packed(database: Database, most: int = 1) -> int:
    """Pack all that can be packed; the number of rows."""
    moved = [write(database, blocks.pack_finished, most)]
    while moved[-1]:
        moved.append(write(database, blocks.pack_finished, most))
    return sum(moved)


def values(rows: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    names = ("run_id", "round", "committed_at", "extra", *COLUMNS)
    return [{name: getattr(row, name) for name in names} for row in rows]


def everything(database: Database, held: Claim) -> list[Any]:
    """All that is read of the rows of a run."""
    metrics = ("train_loss", "test_accuracy", "objective", "bytes_up", "count")
    run = read(database, runs.find, held.run_id)
    found: list[Any] = [
        values(read(database, curves.after, held.run_id, after, limit))
        for after, limit in (
            (0, 1_000),
            (0, 3),
            (SIZE - 1, 2),
            (SIZE, SIZE),
            (ROUNDS - 60, 1_000),
            (ROUNDS, 5),
        )
    ]
    found += [
        read(database, curves.value, run, metric, round)
        for metric in metrics
        for round in (1, 9, SIZE, ROUNDS, ROUNDS + 1)
    ]
    found.append(read(database, curves.extra_measures, run.experiment_id))
    curve = read(database, curves.of_runs, [held.run_id], *metrics)[held.run_id]
    return [*found, *map(curve.listed, metrics)]


def stored_rows(database: Database) -> int:
    return read(database, lambda session: session.scalar(select(func.count()).select_from(RoundRecord)) or 0)


def test_packed_rows_are_read_as_they_were(database: Database) -> None:
    held = played(database, history())
    assert packed(database) == 0, "a run that goes on keeps its rows"
    finish(database, held)
    before = everything(database, held)
    assert packed(database) == 2 * SIZE
    assert stored_rows(database) == ROUNDS - 2 * SIZE
    assert everything(database, held) == before
    write(database, experiments.delete, held.experiment_id)
    assert not read(database, lambda session: session.scalars(select(PackedRecord)).all())


def test_readers_of_many_runs_see_each_round_once(database: Database) -> None:
    held = [played(database, history()[:count], count) for count in (3, SIZE + 4, 2 * SIZE, 5)]
    for one in held[1:3]:
        finish(database, one)
    packed(database, most=50)
    for limit in (3, 150, 201, 1_000):
        cursors, seen = dict.fromkeys((one.run_id for one in held), 0), []
        while rows := read(database, curves.after_many, cursors, limit):
            assert len(rows) <= limit
            seen += [(row.run_id, row.round) for row in rows]
            cursors |= {row.run_id: row.round for row in rows}
        assert seen == [(one.run_id, round) for one in held for round in range(1, one.done + 1)]


def test_an_extended_run_goes_on_after_its_packed_rows(database: Database) -> None:
    held = played(database, history())
    finish(database, held)
    packed(database)
    rounds = 2 * ROUNDS
    write(database, extension.extend, held.experiment_id, rounds=rounds, seeds=[], measure=lambda _: None)
    again = claim(database)
    commit_slice(database, again, history(ROUNDS + 1, rounds))
    finish(database, again.at(rounds, "key"))
    before = everything(database, again)
    assert packed(database) == rounds // SIZE * SIZE - 2 * SIZE
    assert everything(database, again) == before
    assert [row.round for row in read(database, curves.after, again.run_id)] == list(range(1, rounds + 1))


@pytest.mark.parametrize("which", [0, 1])
def test_a_difference_is_found_among_packed_rows(database: Database, which: int) -> None:
    other = history()
    other[SIZE + 2] = history(SIZE + 3, SIZE + 3, objective=2.0)[0]
    held = [played(database, reports) for reports in (history(), other, history())]
    finish(database, held[which])
    packed(database)
    first, second, third = (read(database, runs.find, one.run_id) for one in held)
    expected = RowDifference(SIZE + 3, "objective", -0.0, 2.0)
    assert read(database, reproductions.first_difference, Pair(first, second)) == expected
    assert read(database, reproductions.first_difference, Pair(first, third)) is None
