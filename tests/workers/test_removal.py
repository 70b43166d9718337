"""Files of what was deleted are removed, whatever happened between."""

from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import update

from fedcore.errors import StorageError
from fedcore.platform.storage import FolderStorage, Storage, open_storage
from fedcore.platform.store import Database, datasets, experiments
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import RemovalRecord
from fedcore.platform.uploads import dataset_storage
from fedcore.settings import Settings
from tests.platform.store.acts import claim, finish, submit, write
from tests.platform.store.test_datasets import keep
from tests.support.polling import eventually
from workers import reconciler
from workers.reconciler import remove_due


class Flaky(FolderStorage):
    """A folder in which some things cannot be removed for a while."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stuck: set[str] = set()
        self.kill = False
        """End the process that removes something."""

    def delete(self, key: str) -> None:
        self._check(key)
        super().delete(key)

    def delete_prefix(self, prefix: str) -> None:
        self._check(prefix)
        super().delete_prefix(prefix)

    def _check(self, path: str) -> None:
        if self.kill:
            raise KeyboardInterrupt
        if path in self.stuck:
            raise StorageError(f"the storage failed: {path} could not be removed")


@pytest.fixture
def storage(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path / "storage")


def played(database: Database, storage: Storage) -> tuple[str, str]:
    """An experiment whose only run has ended and left files; its id and the run's."""
    experiment = submit(database)
    held = claim(database)
    for name in ("2-1.safetensors", "model.safetensors"):
        storage.put(f"{held.run_id}/{name}", b"state")
    finish(database, held)
    return experiment.id, held.run_id


def remove(database: Database, storage: Storage) -> None:
    """Remove what is due, as a reconciler does."""
    remove_due(database, storage, Event())


def let_time_pass(database: Database) -> None:
    """Until whatever waits is due."""
    with database.transaction() as session:
        session.execute(update(RemovalRecord).values(due_at=sql_now(-1.0)))


def test_files_are_removed_though_nothing_but_the_deleting_transaction_was_carried_out(
    database: Database, storage: Flaky
) -> None:
    (gone, gone_run), (_, kept_run) = played(database, storage), played(database, storage)
    write(database, experiments.delete, gone)
    assert len(storage.keys(gone_run)) == 2, "the API was killed here"
    remove(database, storage)
    assert (storage.keys(gone_run), len(storage.keys(kept_run))) == ([], 2)
    let_time_pass(database)
    remove(database, storage)
    assert len(storage.keys(kept_run)) == 2


def test_what_cannot_be_removed_keeps_nothing_else_from_being_removed_and_is_tried_again(
    database: Database, storage: Flaky
) -> None:
    made = [played(database, storage) for _ in range(3)]
    for experiment, _ in made:
        write(database, experiments.delete, experiment)
    runs = [run for _, run in made]
    storage.stuck = {runs[0]}
    remove(database, storage)
    assert [bool(storage.keys(run)) for run in runs] == [True, False, False]
    storage.stuck = set()
    remove(database, storage)
    assert storage.keys(runs[0]), "not at once"
    let_time_pass(database)
    remove(database, storage)
    assert not storage.keys(runs[0])


def test_a_remover_that_was_killed_is_replaced(database: Database, storage: Flaky) -> None:
    experiment, run = played(database, storage)
    write(database, experiments.delete, experiment)

    storage.kill = True
    with pytest.raises(KeyboardInterrupt):
        remove(database, storage)
    storage.kill = False
    remove(database, storage)
    assert storage.keys(run), "its lease is not over"
    let_time_pass(database)
    remove(database, storage)
    assert not storage.keys(run)


def test_the_file_of_a_data_set_is_removed_and_none_of_a_data_set_that_there_is(
    database: Database, storage: Flaky
) -> None:
    first, bobs = keep(database), keep(database, owner="bob")
    for kept in (first, bobs):
        storage.put(dataset_storage.storage_key(kept.id, kept.digest), b"arrays")
    write(database, datasets.delete, first.id, None)
    again = keep(database)
    storage.put(dataset_storage.storage_key(again.id, again.digest), b"arrays")
    remove(database, storage)
    assert storage.keys("datasets") == sorted(
        dataset_storage.storage_key(kept.id, kept.digest) for kept in (bobs, again)
    )


def test_the_reconciler_removes_what_is_due(database: Database, database_url: str, tmp_path: Path) -> None:
    configured = Settings(
        _env_file=None,
        home=tmp_path,
        database_url=database_url,
        broker_url=f"redis+socket://{tmp_path}/nobody.sock",
    )
    storage = open_storage(configured.storage)
    experiment, run = played(database, storage)
    write(database, experiments.delete, experiment)

    class Ended(Event):
        """Set once the files are gone."""

        def wait(self, timeout: float | None = None) -> bool:
            eventually(lambda: not storage.keys(run))
            return True

    reconciler.run_forever(database, configured, Ended())
    assert not storage.keys(run)
