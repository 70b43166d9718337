"""Storage keeps the same promises in a folder and at an fsspec URL."""

import re
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from fedcore.errors import ResourceNotFoundError, StorageError
from fedcore.platform.storage import Storage, open_storage, read
from fedcore.platform.storage.remote import RemoteStorage
from tests.support import faulty
from tests.support.faulty import FaultyFileSystem

KEY = "run-1/3-2.safetensors"


@pytest.fixture(params=["path", "file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    urls = {
        "path": str(tmp_path / "with space"),
        "file": (tmp_path / "with space").as_uri(),
        "memory": f"memory://{uuid4().hex}",
    }
    opened = open_storage(urls[request.param])
    yield opened
    opened.delete_prefix("")


def _read(storage: Storage, key: str) -> bytes:
    with storage.open(key) as file:
        return file.read()


def _put_all(storage: Storage, states: list[bytes]) -> None:
    for state in states:
        storage.put(KEY, state)


def test_what_was_put_last_is_read_back(storage: Storage) -> None:
    for data in (b"a first state, longer than the second", b"", b"\0" * 100_000):
        storage.put(KEY, data)
        assert _read(storage, KEY) == data


def test_a_file_is_stored_as_its_content_is(storage: Storage, tmp_path: Path) -> None:
    file = tmp_path / "upload"
    for data in (b"a first state, longer than the second", b"", b"0123456789" * 300_000):
        file.write_bytes(data)
        storage.put_file(KEY, file)
        assert _read(storage, KEY) == data
    assert storage.keys("run-1") == [KEY]


def test_it_can_be_read_in_pieces(storage: Storage) -> None:
    storage.put(KEY, b"0123456789")
    with storage.open(KEY) as file:
        assert [file.read(4), file.read(4), file.read(4), file.read(4)] == [b"0123", b"4567", b"89", b""]


def test_keys_are_those_of_one_folder_in_order(storage: Storage) -> None:
    for key in (
        "run-1/2-1.safetensors",
        "run-1/1-1.safetensors",
        "run-10/1-1.safetensors",
        "run-2/1-1.safetensors",
    ):
        storage.put(key, b"")
    assert storage.keys("run-1") == ["run-1/1-1.safetensors", "run-1/2-1.safetensors"]
    assert storage.keys("run-3") == []


def test_what_is_deleted_is_gone_and_may_be_deleted_again(storage: Storage) -> None:
    storage.put(KEY, b"state")
    storage.put("run-1/4-2.safetensors", b"state")
    for _ in range(2):
        storage.delete(KEY)
        assert storage.keys("run-1") == ["run-1/4-2.safetensors"]
    for _ in range(2):
        storage.delete_prefix("run-1")
        assert storage.keys("run-1") == []


def test_nothing_is_found_under_an_unknown_key_which_the_error_names(storage: Storage) -> None:
    with pytest.raises(ResourceNotFoundError, match=re.escape(KEY)):
        storage.open(KEY)


def test_a_reader_never_meets_half_of_what_is_written(storage: Storage) -> None:
    states = [bytes([number]) * 300_000 for number in range(8)]
    storage.put(KEY, states[0])
    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(_put_all, storage, states * 5)
        while not writing.done():
            assert _read(storage, KEY) in states
    writing.result()


def test_what_a_crash_left_half_written_is_not_listed_and_harms_no_later_write(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put(KEY, b"state")
    (tmp_path / "run-1" / ".4-2.safetensors.partial").write_bytes(b"sta")
    assert storage.keys("run-1") == [KEY]
    storage.put("run-1/4-2.safetensors", b"state")
    assert _read(storage, "run-1/4-2.safetensors") == b"state"


def test_a_full_disk_is_named_and_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put(KEY, b"state")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(
            StorageError, match=rf"^the storage is full: {re.escape(KEY)} could not be stored: OSError: "
        ):
            storage.put(KEY, b"\1" * 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _read(storage, KEY) == b"state"
    assert [path.name for path in (tmp_path / "run-1").iterdir()] == ["3-2.safetensors"]


@pytest.mark.parametrize("fault", [faulty.refused, faulty.timed_out, faulty.broken_off, faulty.half_written])
def test_an_object_that_was_not_stored_whole_is_an_error(
    monkeypatch: pytest.MonkeyPatch, fault: faulty.Fault
) -> None:
    monkeypatch.setattr(FaultyFileSystem, "on_write", lambda _path: fault)
    with pytest.raises(StorageError, match=rf"^the storage failed: {re.escape(KEY)} could not be stored: "):
        open_storage("faulty://bucket").put(KEY, b"0123456789")


def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(FaultyFileSystem, "on_write", lambda _path: lambda *_: never.wait() and None)
    try:
        with pytest.raises(TimeoutError, match=r"the storage has not answered for 0\.1 s"):
            RemoteStorage("faulty://bucket", timeout_s=0.1).put(KEY, b"0123456789")
    finally:
        never.set()


def test_a_folder_that_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put("run-1", b"a file where a folder should be")
    with pytest.raises(StorageError, match="run-1 could not be removed: NotADirectoryError"):
        storage.delete_prefix("run-1")


def test_a_folder_may_be_removed_by_many_at_once(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for number in range(200):
        storage.put(f"run-1/{number}", b"state")
    with ThreadPoolExecutor(8) as removing:
        list(removing.map(storage.delete_prefix, ["run-1"] * 8))
    assert storage.keys("run-1") == []


def test_a_store_that_is_away_is_not_taken_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyFileSystem, "away", True)
    storage = open_storage("faulty://bucket")
    for act in (
        lambda: storage.keys("run-1"),
        lambda: read(storage, KEY),
        lambda: storage.delete(KEY),
        lambda: storage.delete_prefix("run-1"),
    ):
        with pytest.raises(StorageError, match="503 Slow Down"):
            act()
