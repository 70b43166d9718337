"""The reconciler: every run that waits is announced, sparingly, and none stays with a worker that
is gone.
"""

import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import update

from fedcore.errors import StorageError
from fedcore.platform.storage import FolderStorage, Storage, open_storage
from fedcore.platform.store import Database, Status, experiments, workers
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.datasets import DATASETS
from fedcore.platform.store.recovery import LeaseWatch
from fedcore.platform.store.tables import RemovalRecord
from fedcore.platform.uploads import dataset_storage
from fedcore.platform.wakeups import WakeupNotifier
from fedcore.settings import Settings
from tests.builders.claims import claim, finish
from tests.builders.experiments import run_of, submit
from tests.builders.transactions import write
from tests.platform.store.test_datasets import keep
from tests.support.brokers import connect
from tests.support.polling import eventually
from tests.support.silence import knocks
from workers import reconciler
from workers.celery_app import queue_name, send_wakeup
from workers.reconciler import remove_due

QUEUES = "default", "gpu", "large"


@pytest.fixture(autouse=True)
def worker(database: Database) -> None:
    """One that serves these queues."""
    write(database, workers.seen, "worker-1", host="here", pid=1, queues=QUEUES, device="cpu", run_id=None)


@pytest.fixture
def configured(broker_url: str, tmp_path: Path) -> Settings:
    return _settings(tmp_path, broker_url)


def test_a_queue_with_runs_that_wait_is_nudged_once_whatever_their_number(
    database: Database, configured: Settings
) -> None:
    for _ in range(5):
        submit(database)
    submit(database, execution={"queue": "gpu"})
    reconcile(database, configured)
    assert (_messages(configured, "default"), _messages(configured, "gpu")) == (1, 1)


def test_queue_that_no_worker_serves_is_announced_once_there_is_one(
    database: Database, configured: Settings
) -> None:
    submit(database, execution={"queue": "quantum"})
    reconcile(database, configured)
    assert _messages(configured, "quantum") == 0
    write(
        database, workers.seen, "worker-2", host="here", pid=2, queues=["quantum"], device="cpu", run_id=None
    )
    reconcile(database, configured)
    assert _messages(configured, "quantum") == 1


def test_no_messages_pile_up_while_all_workers_are_busy(database: Database, configured: Settings) -> None:
    write(database, workers.seen, "worker-1", run_id="run_1", host="here", pid=1, queues=QUEUES, device="cpu")
    submit(database)
    reconcile(database, configured)
    assert _messages(configured, "default") == 0


def test_a_run_in_the_hands_of_a_worker_is_left_alone(database: Database, configured: Settings) -> None:
    experiment = submit(database)
    claim(database)
    reconcile(database, configured)
    assert run_of(database, experiment).status is Status.RUNNING
    assert _messages(configured, "default") == 0


def test_a_run_whose_lease_has_expired_waits_again_and_is_announced(
    database: Database, configured: Settings
) -> None:
    experiment = submit(database)
    claim(database, lease_s=-1.0)
    reconcile(database, configured)
    assert run_of(database, experiment).status is Status.QUEUED
    assert _messages(configured, "default") == 1


def test_without_a_broker_runs_are_still_taken_from_workers_that_are_gone(
    database: Database, tmp_path: Path
) -> None:
    experiment = submit(database)
    claim(database, lease_s=-1.0)
    reconcile(database, _settings(tmp_path, f"redis+socket://{tmp_path}/nobody.sock"))
    assert run_of(database, experiment).status is Status.QUEUED


def test_a_broker_that_hangs_keeps_no_run_with_a_worker_that_is_gone(
    database: Database, tmp_path: Path
) -> None:
    for queue in QUEUES:
        submit(database, execution={"queue": queue})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configured = _settings(tmp_path, f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        caller = WakeupNotifier(partial(send_wakeup, broker=configured.broker))
        reconciler.reconcile(database, configured, caller, LeaseWatch(configured.lease_seconds))
        assert knocks(silent) < len(QUEUES), (
            "it has waited for the nudge of one queue to fail before that of the next"
        )
    caller.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_error_that_is_not_foreseen_does_not_end_the_reconciler(
    database: Database, tmp_path: Path
) -> None:
    # A date that far back does not exist; settings that are read from the environment refuse it.
    configured = _settings(tmp_path, f"filesystem://{tmp_path}").model_copy(
        update={"audit_retention_days": 800_000.0, "lease_seconds": 0.2}
    )
    ended = Event()
    with ThreadPoolExecutor(1) as beside:
        watching = beside.submit(reconciler.run_forever, database, configured, ended)
        try:
            experiment = submit(database)
            for _ in range(2):
                claim(database, lease_s=-1.0)
                eventually(lambda: run_of(database, experiment).status is Status.QUEUED)
        finally:
            ended.set()
        watching.result()


def reconcile(database: Database, configured: Settings) -> None:
    """The reconciler looks once, and all of its nudges have gone out."""
    caller = WakeupNotifier(partial(send_wakeup, broker=configured.broker))
    reconciler.reconcile(database, configured, caller, LeaseWatch(configured.lease_seconds))
    caller.close(patience_s=60)


def _settings(home: Path, broker_url: str) -> Settings:
    given: dict[str, Any] = {"home": home, "broker_url": broker_url}
    return Settings(_env_file=None, **given)


def _messages(configured: Settings, queue: str) -> int:
    with connect(configured.broker) as client:
        return int(client.llen(queue_name(queue)))


# Files of what was deleted are removed, whatever happened between.


class Flaky(Storage):
    """A folder in which some things cannot be removed for a while."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FolderStorage(folder))
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


def test_file_that_cannot_be_removed_keeps_no_other_and_is_tried_again(
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
    write(database, DATASETS.delete, first.id, None)
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
