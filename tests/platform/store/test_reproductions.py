"""Two runs beside each other: the first number that differs, whatever the database."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from fedcore.platform.provenance import ENGINE_CHOICE
from fedcore.platform.store import Database, reproductions, runs
from fedcore.platform.store.reproductions import Pair, RowDifference
from tests.builders.claims import LEASE_S, claim, finish, report
from tests.builders.experiments import runs_of, submit
from tests.builders.transactions import read, write

Rounds = Sequence[Mapping[str, Any]]


def _pair(database: Database, original: Rounds, here: Rounds) -> Pair:
    """Two runs with these rounds."""
    made = []
    for values in (original, here):
        experiment = submit(database)
        held = claim(database)
        reports = [report(round, **given) for round, given in enumerate(values, 1)]
        write(database, runs.commit_slice, held, reports, checkpoint="key", lease_s=LEASE_S, provenance={})
        write(database, runs.finish, held.at(len(reports), "key"), model="model", provenance={})
        made += runs_of(database, experiment)
    return Pair(*made)


SAME: Rounds = [
    {"train_loss": 0.1 + 0.2, "extra": {"x": [1.0, 2.0], "distance": 1e-300}},
    {"train_loss": 0.3},
    {"seconds": 9.0},
]
ULP = 0.30000000000000004

CASES: dict[str, tuple[Rounds, RowDifference | None]] = {
    "equal": (SAME, None),
    "slower": ([{**values, "seconds": 99.0} for values in SAME], None),
    "measures in another order": (
        [{**SAME[0], "extra": {"distance": 1e-300, "x": [1.0, 2.0]}}, *SAME[1:]],
        None,
    ),
    "fewer rounds": (SAME[:2], None),
    "one bit": (
        [SAME[0], {"train_loss": ULP}, {"train_loss": 5.0}],
        RowDifference(2, "train_loss", 0.3, ULP),
    ),
    "absent": ([SAME[0], {}, SAME[2]], RowDifference(2, "train_loss", 0.3, None)),
    "a measure more": (
        [*SAME[:2], {"seconds": 9.0, "extra": {"distance": 1.0}}],
        RowDifference(3, "distance", None, 1.0),
    ),
    "in a list": (
        [{**SAME[0], "extra": {"x": [1.0, 2.5], "distance": 1e-300}}, *SAME[1:]],
        RowDifference(1, "x[1]", 2.0, 2.5),
    ),
    "a longer list": (
        [{**SAME[0], "extra": {"x": [1.0, 2.0, 3.0], "distance": 1e-300}}, *SAME[1:]],
        RowDifference(1, "x[2]", None, 3.0),
    ),
    "traffic": ([{**SAME[0], "bytes_up": 301}, *SAME[1:]], RowDifference(1, "bytes_up", 300, 301)),
}


@pytest.mark.parametrize(("here", "expected"), CASES.values(), ids=CASES)
def test_the_first_number_that_differs_is_found(
    database: Database, here: Rounds, expected: RowDifference | None
) -> None:
    assert read(database, reproductions.first_difference, _pair(database, SAME, here)) == expected


def test_rows_that_are_only_written_otherwise_are_passed_over_page_by_page(database: Database) -> None:
    turned = [{"extra": {"a": 1.0, "b": float(round)}} for round in range(7)]
    other = [{"extra": {"b": float(round), "a": 1.0}} for round in range(6)] + [
        {"extra": {"b": 6.0, "a": 2.0}}
    ]
    found = read(
        database, partial(reproductions.first_difference, page_rows=2), _pair(database, turned, other)
    )
    assert found == RowDifference(7, "a", 1.0, 2.0)


def test_runs_of_the_same_arm_and_seed_are_pairs(database: Database) -> None:
    first = submit(database, seeds=[0, 1, 2], sweep={"local.lr": [0.1, 0.2]})
    second = submit(database, seeds=[2, 0], sweep={"local.lr": [0.1, 0.2]})
    found = read(database, reproductions.pairs, second.id, first.id)
    assert [(pair.here.arm, pair.here.seed) for pair in found] == [(0, 2), (0, 0), (1, 2), (1, 0)]
    assert all((pair.original.arm, pair.original.seed) == (pair.here.arm, pair.here.seed) for pair in found)
    assert {pair.original.experiment_id for pair in found} == {first.id}


def test_a_repetition_is_carried_out_by_the_same_engines(database: Database) -> None:
    first = submit(database, seeds=[0, 1])
    chosen = {"engine": "parallel", "how": "rule"}
    write(
        database,
        runs.finish,
        claim(database),
        model="model",
        provenance={ENGINE_CHOICE: chosen, "batched_runs": 2},
    )
    finish(database, claim(database))
    assert read(database, reproductions.engine_choices, first.id) == {(0, 0): {ENGINE_CHOICE: chosen}}
