"""Old experiments are archived, then deleted, and none is deleted that somebody still needs."""

import gzip
import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO

import pytest
from structlog.testing import capture_logs

from fedcore.bundles import storage_key
from fedcore.errors import StorageError
from fedcore.platform.storage import FolderStorage, Storage, open_storage, read
from fedcore.platform.store import Database, Status, audit, counters, experiments, lifecycle, sharing
from fedcore.platform.store.tables import ExperimentRecord
from tests.builders.claims import claim, commit, fail, finish
from tests.builders.experiments import submit
from tests.builders.runs import finish_with_models
from tests.builders.specifications import SYNTHETIC, Document, merged
from tests.builders.transactions import read as see
from tests.builders.transactions import write
from tests.platform.store.test_bundles import bundle
from tests.simulation.test_searches import HALVING, SEARCH
from tests.support.s3 import S3, Fault
from tests.workers.deployment import Deployment
from workers.reconciler import remove_due
from workers.retention import PAUSE_S, RESULTS, remove_expired

AT_ONCE, TOMORROW = -1.0, 1.0
"""Days after which an experiment is old: any that has ended, or none of today."""
KINDS: Document = {
    "the best model is another than the final one": {"local": {"lr": 1.0}},
    "the best model is the final one": {"evaluation": {"every": 6}},
    "no best model": {"evaluation": {"best_model": "none"}},
    "one round": {"rounds": 1},
    "diverged": {"rounds": 20, "local": {"lr": 1e6}, "problem": {"model": {"l2": 1.0}}},
    "several models": {"algorithm": {"kind": "ifca", "clusters": 2, "spread": 0.1}},
    "personal models": {"algorithm": {"kind": "ditto"}},
    "personal layers": {"algorithm": {"kind": "fedper", "head": 1}},
    "two arms and seeds": {"seeds": [0, 1], "sweep": {"algorithm.kind": ["fedavg", "scaffold"]}},
}
"""Changes to a specification whose runs leave files of all kinds."""


class Patient(Event):
    """Notes how long somebody would wait, and goes on at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        return False


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(FolderStorage(tmp_path / "storage"))


@pytest.fixture
def archive(tmp_path: Path) -> Storage:
    return Storage(FolderStorage(tmp_path / "archive"))


def ended(database: Database, storage: Storage, **changes: Any) -> tuple[str, str]:
    """An experiment whose only run has ended with a model; its id and the run's."""
    experiment = submit(database, **changes)
    held = claim(database)
    storage.put(f"{held.run_id}/model.safetensors", held.run_id.encode())
    finish(database, held)
    return experiment.id, held.run_id


def ids(database: Database) -> set[str]:
    return {record.id for record in see(database, experiments.page).items}


def test_only_what_ended_long_ago_and_is_not_starred_is_deleted(
    database: Database, storage: Storage, archive: Storage
) -> None:
    (old, run), (starred, _) = ended(database, storage), ended(database, storage)
    write(database, experiments.edit, starred, starred=True)
    waiting = submit(database).id
    remove_expired(database, storage, archive, TOMORROW, Event())
    assert ids(database) == {old, starred, waiting}
    remove_expired(database, storage, archive, AT_ONCE, Event())
    assert ids(database) == {starred, waiting}
    assert read(archive, f"{old}/{run}/model.safetensors") == run.encode()
    (entry,) = see(database, audit.page, target=old).items
    assert (entry.action, entry.owner) == ("retention", "local")


@pytest.mark.parametrize(("owner", "archived"), [("local", True), ("ann", False)])
def test_the_archive_has_the_code_that_the_owner_may_read(
    database: Database, storage: Storage, archive: Storage, owner: str, archived: bool
) -> None:
    record = bundle(database, owner)
    storage.put(storage_key(record.id, record.digest), b"an archive")
    code = {"digest": record.digest, "id": record.id, "components": record.components}
    write(database, sharing.share, record, read=["local"])
    old, _ = ended(database, storage, code=code)
    write(database, sharing.end, record.id)
    remove_expired(database, storage, archive, AT_ONCE, Event())
    results = json.loads(gzip.decompress(read(archive, f"{old}/{RESULTS}")))
    assert results.get("code") == (b64encode(b"an archive").decode() if archived else None)


def test_without_an_archive_it_is_deleted_all_the_same(database: Database, storage: Storage) -> None:
    ended(database, storage)
    remove_expired(database, storage, None, AT_ONCE, Event())
    assert ids(database) == set()


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.nightly)])
def deployment(request: pytest.FixtureRequest, embedded: Deployment) -> Deployment:
    """A deployment whose storage is of each kind."""
    if request.param == "folder":
        return embedded
    return embedded.with_settings(storage_url=f"s3://{request.getfixturevalue('s3').bucket()}/fedq")


def carry_out(deployment: Deployment) -> list[str]:
    """Ids of experiments of all kinds that have ended."""
    ids = [
        deployment.submit(merged(SYNTHETIC, {"rounds": 6} | change), nudge=False) for change in KINDS.values()
    ]
    ids.append(deployment.submit(merged(SEARCH, {"seeds": [0], "search": HALVING}), nudge=False))
    with deployment.with_settings(slice_seconds=0.001).runner() as runner:
        runner.work()
    cancelled, never_begun = (
        deployment.submit(merged(SYNTHETIC, {"rounds": 1_000}), nudge=False) for _ in "ab"
    )
    with deployment.runner(stopping=lambda: deployment.run(cancelled).done >= 3) as runner:
        runner.work()
    for id in (cancelled, never_begun):
        write(deployment.database, lifecycle.cancel, id)
    return [*ids, cancelled, never_begun]


@pytest.mark.slow
def test_the_archive_has_every_file_of_every_kind_of_run(deployment: Deployment, tmp_path: Path) -> None:
    old, folder = carry_out(deployment), tmp_path / "archive"
    runs = {id: deployment.runs(id) for id in old}
    (first, *_), *_ = runs.values()
    deployment.storage.put(f"{first.id}/clients.parquet", b"of a kind that nobody has thought of yet")
    stored = {
        id: {key: read(deployment.storage, key) for run in found for key in deployment.storage.keys(run.id)}
        for id, found in runs.items()
    }
    names = {key.rpartition("/")[2].partition("-")[0] for found in stored.values() for key in found}
    assert {"best", "model", "6"} <= names, "no best model, final model or checkpoint to be archived"
    assert {run.status for found in runs.values() for run in found} == {Status.SUCCEEDED, Status.CANCELLED}
    assert any(run.diverged_round for found in runs.values() for run in found)
    archive = open_storage(str(folder))
    remove_expired(deployment.database, deployment.storage, archive, AT_ONCE, Event())
    assert ids(deployment.database) == set()
    for id, found in runs.items():
        files = [path for path in (folder / id).rglob("*") if path.is_file()]
        archived = {path.relative_to(folder / id).as_posix(): path.read_bytes() for path in files}
        results = json.loads(gzip.decompress(archived.pop(RESULTS)))
        assert [run["id"] for run in results["runs"]] == [run.id for run in found]
        assert archived == stored[id]
    remove_due(deployment.database, deployment.storage, Event())
    assert not any(deployment.storage.keys(run.id) for found in runs.values() for run in found)


class Unreadable(Storage):
    """One run's files cannot be read."""

    def __init__(self, folder: Path, run: str, error: Exception) -> None:
        super().__init__(FolderStorage(folder))
        self._run, self._error = run, error

    def open(self, key: str) -> BinaryIO:
        if key.startswith(self._run):
            raise self._error
        return super().open(key)


@pytest.mark.parametrize("error", [StorageError("in Glacier"), OSError("no space for a copy"), ValueError()])
def test_experiment_that_cannot_be_archived_keeps_no_other_and_is_tried_again(
    database: Database, storage: Storage, archive: Storage, tmp_path: Path, error: Exception
) -> None:
    (stuck, run), *_ = (ended(database, storage) for _ in range(3))
    waiting = Patient()
    with capture_logs() as lines:
        remove_expired(database, Unreadable(tmp_path / "storage", run, error), archive, AT_ONCE, waiting)
    assert ids(database) == {stuck}
    assert archive.keys(stuck) == []
    assert waiting.waited == [PAUSE_S]
    (line,) = (line for line in lines if line["log_level"] == "error")
    assert (line["experiment_id"], line["error"]) == (stuck, str(error))
    assert line["exc_info"] is (None if isinstance(error, StorageError) else error), "its message says all"
    assert see(database, counters.totals)[counters.RETENTION_FAILURES] == 1
    remove_expired(database, storage, archive, AT_ONCE, waiting)
    assert ids(database) == set()
    assert read(archive, f"{stuck}/{run}/model.safetensors") == run.encode()
    assert waiting.waited == [PAUSE_S]


def test_files_that_the_archive_does_not_take_are_kept(
    database: Database, storage: Storage, archive: Storage
) -> None:
    class Full(Storage):
        def put_file(self, key: str, file: Path) -> None:
            raise StorageError(f"the storage is full: {key} could not be stored")

    old = {ended(database, storage)[0] for _ in range(2)}
    remove_expired(database, storage, Full(FolderStorage(Path("unused"))), AT_ONCE, Patient())
    assert ids(database) == old
    remove_expired(database, storage, archive, AT_ONCE, Event())
    assert ids(database) == set()


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_object_store_that_fails_now_and_then_loses_nothing_on_the_way_to_the_archive(
    database: Database, s3: S3
) -> None:
    kept, copies = s3.bucket(), s3.bucket()
    storage, archive = open_storage(f"s3://{kept}"), open_storage(f"s3://{copies}/archive")
    old = [ended(database, storage) for _ in range(6)]
    stored = s3.objects(kept)
    s3.fail(*Fault, share=0.3)
    with capture_logs() as lines:
        for _ in range(100):
            remove_expired(database, storage, archive, AT_ONCE, Patient())
            if not ids(database):
                break
    s3.fail()
    assert {line.get("exc_info") for line in lines} == {None}
    assert any(line["log_level"] == "error" for line in lines), "nothing has failed"
    archived = s3.objects(copies)
    assert {f"archive/{id}/{RESULTS}" for id, _ in old} <= archived.keys()
    for id, run in old:
        key = f"{run}/model.safetensors"
        assert archived[f"archive/{id}/{key}"] == stored[key]
    remove_due(database, storage, Event())
    assert s3.objects(kept) == {}


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("damage", [None, lambda content: content[:100], lambda content: content[:-1] + b"x"])
def test_an_experiment_whose_final_or_best_model_is_missing_or_damaged_is_kept(
    database: Database,
    storage: Storage,
    archive: Storage,
    lost: int,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    experiment = submit(database).id
    keys = finish_with_models(database, storage, claim(database))
    content = read(storage, keys[lost])
    storage.delete(keys[lost])
    if damage is not None:
        storage.put(keys[lost], damage(content))
    with capture_logs() as lines:
        remove_expired(database, storage, archive, AT_ONCE, Patient())
    assert ids(database) == {experiment}
    assert archive.keys(experiment) in ([], [f"{experiment}/{keys[0].partition('/')[0]}"])
    (line,) = (line for line in lines if line["log_level"] == "error")
    assert keys[lost] in line["error"]
    assert line["exc_info"] is None
    assert see(database, counters.totals)[counters.RETENTION_FAILURES] == 1
    storage.put(keys[lost], content)
    remove_expired(database, storage, archive, AT_ONCE, Event())
    assert ids(database) == set()
    assert [read(archive, f"{experiment}/{key}") for key in keys] == [read(storage, key) for key in keys]


@pytest.mark.parametrize("succeeded", [True, False])
def test_only_a_run_without_a_model_needs_its_checkpoint(
    database: Database, storage: Storage, archive: Storage, succeeded: bool
) -> None:
    experiment = submit(database).id
    held = commit(database, claim(database))
    if succeeded:
        finish_with_models(database, storage, held)
    else:
        fail(database, held)
    remove_expired(database, storage, archive, AT_ONCE, Patient())
    assert ids(database) == (set() if succeeded else {experiment})


@pytest.mark.parametrize("change", [{"starred": True}, {"name": "the best one"}])
def test_an_experiment_that_is_changed_meanwhile_is_not_deleted(
    database: Database, storage: Storage, change: dict[str, Any]
) -> None:
    id, _ = ended(database, storage)
    found: ExperimentRecord | None = see(database, experiments.expired, AT_ONCE)
    assert found is not None
    write(database, experiments.edit, id, **change)
    assert write(database, experiments.delete_expired, found) is False
    assert ids(database) == {id}


def test_an_experiment_that_another_reconciler_has_deleted_is_left_to_it(
    database: Database, storage: Storage
) -> None:
    ended(database, storage)
    found = see(database, experiments.expired, AT_ONCE)
    assert found is not None
    assert write(database, experiments.delete_expired, found) is True
    assert write(database, experiments.delete_expired, found) is False
