"""How fast runs went; on both databases."""

import pytest

from fedcore.platform.store import Database, service_metrics
from tests.documents import Document
from tests.platform.store.acts import claim, commit, read, record, report, submit


def _told(database: Database, spec: Document, owner: str | None = None) -> float | None:
    return read(database, service_metrics.seconds_per_gradient, spec, owner)


def test_it_is_the_median_over_the_latest_runs_with_the_same_data_model_and_batches(
    database: Database,
) -> None:
    made = submit(database, owner="ada", seeds=[0, 1, 2])
    assert _told(database, made.spec) is None
    # Three local steps a round, at 1, 2 and 6 seconds a round.
    for number, seconds in enumerate((1.0, 2.0, 6.0)):
        held = claim(database, f"worker-{number}")
        record(database, held, [report(round, local_steps=3, seconds=seconds) for round in (1, 2)])
    assert _told(database, made.spec) == pytest.approx(2 / 3)
    assert _told(database, made.spec, "ada") == pytest.approx(2 / 3)
    assert _told(database, made.spec, "bob") is None
    for other in (
        {"problem": made.spec["problem"] | {"dataset": {"kind": "least_squares"}}},
        {"local": {"batch_size": 7}},
    ):
        assert _told(database, {**made.spec, **other}) is None


def test_rounds_in_which_nobody_arrived_tell_nothing(database: Database) -> None:
    made = submit(database)
    record(database, claim(database), [report(1, local_steps=0)])
    assert _told(database, made.spec) is None


def test_runs_that_have_just_begun_count(database: Database) -> None:
    made = submit(database)
    commit(database, claim(database), 1)
    assert _told(database, made.spec) == pytest.approx(0.5 / 6)
