"""Files of deleted rows are noted in the deleting transaction, and stay noted until they are
removed.
"""

from contextlib import suppress
from datetime import datetime

import pytest
from sqlalchemy import select

from fedcore.platform.store import Database, Session, experiments, removals
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.datasets import DATASETS
from fedcore.platform.store.removals import FIRST_PAUSE_S, LONGEST_PAUSE_S
from fedcore.platform.store.tables import RemovalRecord
from fedcore.platform.uploads import dataset_storage
from tests.builders.claims import LEASE_S, claim, commit, finish, lose
from tests.builders.experiments import submit
from tests.builders.transactions import read, write
from tests.platform.store.test_datasets import keep

HOLD_S = 60.0


def noted(session: Session) -> dict[str, float]:
    """The seconds until each path is due."""
    moment: datetime = session.scalars(select(sql_now())).one()
    return {one.path: (one.due_at - moment).total_seconds() for one in session.scalars(select(RemovalRecord))}


def take(database: Database, limit: int = 100) -> list[str]:
    """The paths that are taken up now."""
    return [path for path, _ in write(database, removals.take, limit, HOLD_S)]


def test_a_deleted_experiment_notes_the_files_of_the_runs_that_a_worker_has_held(database: Database) -> None:
    gone, kept = submit(database, seeds=[0, 1, 2]), submit(database)
    finish(database, commit(database, ended := claim(database), 2))
    held = claim(database)
    write(database, experiments.delete, gone.id)
    due = read(database, noted)
    assert set(due) == {f"{ended.run_id}/", f"{held.run_id}/"}
    assert due[f"{ended.run_id}/"] <= 0
    assert LEASE_S / 2 < due[f"{held.run_id}/"] <= LEASE_S, "its worker may still write"
    assert take(database) == [f"{ended.run_id}/"]
    claim(database)
    write(database, experiments.delete, kept.id)
    assert len(read(database, noted)) == 3


def test_a_run_that_was_taken_from_its_worker_is_due_at_once(database: Database) -> None:
    experiment = submit(database)
    held = claim(database, lease_s=-1.0)
    lose(database)
    write(database, experiments.delete, experiment.id)
    assert take(database) == [f"{held.run_id}/"]


def test_a_deleted_data_set_notes_its_file_and_no_other_of_its_content(database: Database) -> None:
    first = keep(database)
    bobs = keep(database, owner="bob")
    write(database, DATASETS.delete, first.id, None)
    again = keep(database)
    assert again.digest == first.digest == bobs.digest
    assert take(database) == [dataset_storage.storage_key(first.id, first.digest)]


def test_a_deletion_that_is_undone_notes_nothing(database: Database) -> None:
    experiment, kept = submit(database), keep(database)
    claim(database)
    with suppress(ConnectionError), database.transaction() as session:
        experiments.delete(session, experiment.id)
        DATASETS.delete(session, kept.id, None)
        raise ConnectionError
    assert not read(database, noted)


def test_removals_are_taken_by_one_process_and_come_again_if_they_are_not_concluded(
    database: Database,
) -> None:
    for path in ("a/", "b/", "c"):
        write(database, removals.note, path)
    assert sorted(take(database, 2) + take(database)) == ["a/", "b/", "c"]
    assert not take(database)
    assert all(HOLD_S / 2 < left_s <= HOLD_S for left_s in read(database, noted).values())
    assert not read(database, removals.any_due)
    write(database, removals.take, 0, HOLD_S)
    write(database, removals.conclude, ["a/"], {})
    assert set(read(database, noted)) == {"b/", "c"}


@pytest.mark.parametrize("failures", [0, 1, 5, 10_000])
def test_a_pause_is_twice_as_long_after_each_failure_and_no_longer_than_an_hour(
    database: Database, failures: int
) -> None:
    write(database, removals.note, "a/")
    write(database, removals.conclude, [], {"a/": failures})
    expected = min(FIRST_PAUSE_S * 2 ** min(failures, 20), LONGEST_PAUSE_S)
    assert read(database, noted)["a/"] == pytest.approx(expected, abs=5.0)
