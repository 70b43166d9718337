"""Rounds are stored in blocks and read again as they were."""

import struct
from collections.abc import Sequence
from math import isfinite, nan
from random import Random
from typing import Any

import pytest
from sqlalchemy import func, select

from fedcore.platform.store import Database, Session, curves, experiments, extension, reproductions, runs
from fedcore.platform.store.blocks import FULL, RoundBlock, StoredRound
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.reproductions import Pair, RowDifference
from fedcore.platform.store.tables import BlockRecord
from fedcore.simulation.report import COLUMNS, RoundReport
from tests.builders.claims import claim, commit, commit_slice, finish, report
from tests.builders.experiments import submit
from tests.builders.transactions import read, write

ROUNDS = 450
SPLIT = FULL // 11
"""Rounds of a block: each has eleven numbers."""
LARGE = 2**53 + 1
"""Not a float64."""


def history(first: int = 1, last: int = ROUNDS, **extra: float) -> list[RoundReport]:
    """Rounds with all that a list of numbers does not have."""
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


def values(rows: Sequence[StoredRound]) -> list[dict[str, Any]]:
    names = ("run_id", "round", "committed_at", "extra", *COLUMNS)
    return [{name: getattr(row, name) for name in names} for row in rows]


def stored(reports: Sequence[RoundReport]) -> list[dict[str, Any]]:
    """Rounds as they are to be read, but for their run and when they were committed."""
    return [report.row() for report in reports]


def told(rows: Sequence[StoredRound]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ("round", *COLUMNS, "extra")} for row in values(rows)]


def blocks(database: Database) -> int:
    return read(database, lambda session: session.scalar(select(func.count()).select_from(BlockRecord)) or 0)


@pytest.mark.parametrize("slices", [[ROUNDS], [1, SPLIT - 2, 3, ROUNDS - SPLIT - 2], [7] * 20])
def test_rounds_are_read_as_they_were_written_however_they_were_committed(
    database: Database, slices: list[int]
) -> None:
    submit(database, rounds=ROUNDS)
    held, reports = claim(database), history()[: sum(slices)]
    for length in slices:
        commit_slice(database, held, reports[held.done : held.done + length])
        held = held.at(held.done + length, "key")
    assert blocks(database) == len(reports) * 11 // FULL + 1
    for after, limit in ((0, 1_000), (0, 3), (SPLIT - 1, 2), (SPLIT, SPLIT), (len(reports), 5)):
        found = read(database, curves.after, held.run_id, after, limit)
        # By their texts, which tell -0.0 from 0.0 and 1 from 1.0.
        assert repr(told(found)) == repr(stored(reports[after : after + limit]))
    write(database, experiments.delete, held.experiment_id)
    assert blocks(database) == 0


def test_any_finite_number_is_read_to_the_last_bit() -> None:
    extremes = [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1 + 0.2, -0.0, 1 / 3, 1e22, 1e23]
    extremes += [LARGE, 2**62, 0, -1]
    bits = Random(0)
    drawn = [number for (number,) in struct.iter_unpack("<d", bits.randbytes(80_000)) if isfinite(number)]
    drawn += extremes
    block = RoundBlock([], {}, {"x": drawn})
    assert repr(RoundBlock.read(block.document()).extra["x"]) == repr(drawn)


def test_a_measure_that_is_absent_is_told_from_one_that_is_not_finite(database: Database) -> None:
    held = played(
        database,
        [
            report(1),
            report(2, extra={"x": nan, "y": [nan, 1.0], "z": [[nan, 1.0]]}),
            report(3, extra={"x": 1.0}),
        ],
        3,
    )
    rows = read(database, curves.after, held.run_id)
    assert [row.extra for row in rows] == [
        {},
        {"x": None, "y": [None, 1.0], "z": [[None, 1.0]]},
        {"x": 1.0},
    ]
    assert read(database, curves.extra_measures, held.experiment_id) == {"x": 0, "y": 1, "z": 2}
    assert read(database, curves.last_lists, held.run_id) == (2, {"y": [None, 1.0], "z": [[None, 1.0]]})


@pytest.mark.parametrize("value", [[0.5] * FULL, [[0.5] * (FULL // 20)] * 20], ids=["list", "matrix"])
def test_a_block_of_long_lists_is_full_after_a_round(database: Database, value: Any) -> None:
    """Rounds with 2,000 numbers are not written again with each round that follows."""
    played(database, [report(round, extra={"x": value}) for round in range(1, 4)], 3)
    assert blocks(database) == 3


def test_a_value_is_that_of_a_round_or_of_the_last_that_has_one(database: Database) -> None:
    held = played(database, history())
    run = read(database, runs.find, held.run_id)
    for metric in ("train_loss", "test_accuracy", "objective", "bytes_up", "count", "x", "none"):
        curve = read(database, curves.of_runs, [held.run_id], metric)[held.run_id].listed(metric)
        for round in (1, 9, SPLIT, SPLIT + 1, ROUNDS):
            assert read(database, curves.value, run, metric, round) == curve[round - 1]
        last = next((value for value in reversed(curve) if value is not None), None)
        assert read(database, curves.value, run, metric, ROUNDS + 1) == last


def test_readers_of_many_runs_see_each_round_once(database: Database) -> None:
    held = [played(database, history()[:count], count) for count in (3, SPLIT + 4, 2 * SPLIT, 5)]
    for limit in (3, 150, 201, 1_000):
        cursors, seen = dict.fromkeys((one.run_id for one in held), 0), []
        while rows := read(database, curves.after_many, cursors, limit):
            assert len(rows) <= limit
            seen += [(row.run_id, row.round) for row in rows]
            cursors |= {row.run_id: row.round for row in rows}
        assert seen == [(one.run_id, round) for one in held for round in range(1, one.done + 1)]


def test_an_extended_run_goes_on_after_its_rounds(database: Database) -> None:
    held = played(database, history())
    finish(database, held)
    rounds = 2 * ROUNDS
    write(database, extension.extend, held.experiment_id, rounds=rounds, seeds=[], measure=lambda _: None)
    again = claim(database)
    commit_slice(database, again, history(ROUNDS + 1, rounds))
    found = read(database, curves.after, again.run_id)
    assert repr(told(found)) == repr(stored(history(1, rounds)))


def test_rounds_whose_transaction_fails_change_no_block(database: Database) -> None:
    submit(database)
    held = commit(database, claim(database), 2)

    def fails(session: Session) -> None:
        curves.append_rounds(session, held.run_id, [report(3)])
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write(database, fails)
    assert [row.round for row in read(database, curves.after, held.run_id)] == [1, 2]


@pytest.mark.parametrize("first", [SPLIT, SPLIT + 2])
def test_a_difference_is_found_in_any_block(database: Database, first: int) -> None:
    other = history()
    other[first] = history(first + 1, first + 1, objective=2.0)[0]
    held = [played(database, reports) for reports in (history(), other, history())]
    one, second, third = (read(database, runs.find, one.run_id) for one in held)
    expected = RowDifference(first + 1, "objective", -0.0, 2.0)
    assert read(database, reproductions.first_difference, Pair(one, second)) == expected
    assert read(database, reproductions.first_difference, Pair(one, third)) is None
