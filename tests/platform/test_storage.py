"""Storage keeps the same promises in a folder and at an fsspec URL."""

import re
import resource
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar
from uuid import uuid4

import fsspec
import pytest
from packaging.requirements import Requirement
from s3fs import S3FileSystem

from deploy.requirements import requirements
from fedcore.data.user_datasets import load
from fedcore.errors import ResourceNotFoundError, SettingsError, StorageError
from fedcore.platform.storage import Storage, open_storage, read, require_storage
from fedcore.platform.storage.remote import RemoteStorage
from tests.platform.uploads.files import arrays, npz, take
from tests.support import faulty
from tests.support.faulty import FaultyFileSystem
from tests.support.s3 import S3, Fault

KEY = "run-1/3-2.safetensors"

Given = ParamSpec("Given")
Result = TypeVar("Result")


@pytest.fixture(params=["path", "file", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    match request.param:
        case "path":
            return open_storage(str(tmp_path / "with space"))
        case "file":
            return open_storage((tmp_path / "with space").as_uri())
        case "memory":
            bucket = uuid4().hex
            fsspec.filesystem("memory").mkdir(f"/{bucket}")
            return open_storage(f"memory://{bucket}/with space")
        case _:
            return open_storage(f"s3://{request.getfixturevalue('s3').bucket()}/with space")


def _read(storage: Storage, key: str) -> bytes:
    with storage.open(key) as file:
        return file.read()


def _put_all(storage: Storage, states: list[bytes]) -> None:
    for state in states:
        storage.put(KEY, state)


def test_file_put_last_is_read_back(storage: Storage) -> None:
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


def test_file_can_be_read_in_pieces(storage: Storage) -> None:
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


def test_deleted_file_is_gone_and_may_be_deleted_again(storage: Storage) -> None:
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
    """An object that is replaced while it is read is an error."""
    states = [bytes([number]) * 300_000 for number in range(8)]
    storage.put(KEY, states[0])
    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(_put_all, storage, states * 5)
        while not writing.done():
            with suppress(StorageError):
                assert _read(storage, KEY) in states
    writing.result()


def test_file_half_written_at_a_crash_is_not_listed_and_harms_no_later_write(tmp_path: Path) -> None:
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


# On a real S3 server, by s3fs.


@pytest.mark.slow
def test_file_that_cannot_be_read_to_its_end_is_an_error_wherever_it_is_read(s3: S3) -> None:
    storage = open_storage(f"s3://{s3.bucket()}")
    samples = take(npz(arrays()))
    file = BytesIO()
    samples.save(file)
    storage.put(KEY, file.getvalue())
    tries: tuple[tuple[Fault, Callable[[BinaryIO], object]], ...] = (
        (Fault.BUSY, lambda source: source.read()),
        (Fault.RESET, lambda source: source.read()),
        (Fault.REFUSED, lambda source: source.read()),
        (Fault.CUT, lambda source: source.read()),
        (Fault.CUT, lambda source: source.read(1)),
        (Fault.CUT, lambda source: shutil.copyfileobj(source, BytesIO())),
        (Fault.CUT, lambda source: load(source, samples.content)),
    )
    for fault, reader in tries:
        s3.fail()
        with storage.open(KEY) as source:
            s3.fail(fault)
            with pytest.raises(
                StorageError, match=f"^the storage failed: {re.escape(KEY)} could not be read"
            ):
                reader(source)


def test_an_object_that_is_deleted_while_it_is_read_is_gone(s3: S3) -> None:
    storage = open_storage(f"s3://{s3.bucket()}")
    storage.put(KEY, b"state")
    with storage.open(KEY) as file:
        storage.delete(KEY)
        with pytest.raises(ResourceNotFoundError, match=re.escape(KEY)):
            file.read()


@pytest.mark.slow
def test_a_store_that_fails_now_and_then_keeps_what_it_has_taken(s3: S3) -> None:
    storage = open_storage(f"s3://{s3.bucket()}")
    keys = [f"run-1/{number}-1.safetensors" for number in range(3)]
    s3.fail(*Fault, share=0.7)
    for key in keys:
        _insist(storage.put, key, key.encode())
        assert key in _insist(storage.keys, "run-1")
        assert _insist(read, storage, key) == key.encode()
    _insist(storage.delete, keys[0])
    assert _insist(storage.keys, "run-1") == keys[1:]
    _insist(storage.delete_prefix, "run-1")
    s3.fail()
    assert storage.keys("run-1") == []


def test_file_stored_by_another_process_since_the_folder_was_listed_is_there(s3: S3) -> None:
    bucket = s3.bucket()
    storage = open_storage(f"s3://{bucket}")
    storage.put("run-1/1-1.safetensors", b"state")
    assert len(storage.keys("run-1")) == 1
    s3.client.put_object(Bucket=bucket, Key=KEY, Body=b"another")
    assert read(storage, KEY) == b"another"


def test_a_missing_bucket_is_named_and_neither_created_nor_taken_for_an_empty_one(s3: S3) -> None:
    storage = open_storage("s3://typo/fedq")
    before = s3.buckets()
    for act in (
        lambda: storage.put(KEY, b"state"),
        lambda: storage.put_file(KEY, Path(__file__)),
        lambda: storage.open(KEY),
        lambda: storage.keys("run-1"),
        lambda: storage.delete(KEY),
        lambda: storage.delete_prefix("run-1"),
    ):
        with pytest.raises(StorageError, match=r"bucket"):
            act()
    assert s3.buckets() == before


def test_a_process_that_starts_finds_its_bucket_missing_or_closed_to_it(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{s3.bucket()}/nothing/yet"
    require_storage(url)
    with pytest.raises(SettingsError, match=r"^FEDQ_ARCHIVE_URL: there is no bucket 'typo'; create it, or"):
        require_storage("s3://typo/fedq", "FEDQ_ARCHIVE_URL")
    s3.fail(Fault.REFUSED)
    with pytest.raises(SettingsError, match=r"^FEDQ_STORAGE_URL: access to .* is refused: .* check the cred"):
        require_storage(url)
    s3.fail()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    S3FileSystem.clear_instance_cache()
    with pytest.raises(
        SettingsError, match=r"^FEDQ_STORAGE_URL: access to .* is refused: NoCredentialsError"
    ):
        require_storage(url)


@pytest.mark.parametrize("place", ["file/new/storage", "file", "/proc/fedq/storage", "/proc/fedq"])
def test_a_process_that_starts_finds_that_its_folder_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    for url in (str(tmp_path / place), (tmp_path / place).as_uri()):
        with pytest.raises(SettingsError, match=rf"^FEDQ_STORAGE_URL: the folder .*{place} cannot be made: "):
            require_storage(url)
    require_storage(str(tmp_path / "new" / "storage"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_process_that_starts_does_not_insist_on_a_store_that_may_come_back(
    s3: S3, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"s3://{s3.bucket()}"
    for fault in (Fault.BUSY, Fault.RESET):
        s3.fail(fault)
        caplog.clear()
        require_storage(url)
        (line,) = caplog.messages
        assert line.startswith("FEDQ_STORAGE_URL: the storage does not answer: ")


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    for act in (open_storage, require_storage):
        with pytest.raises(SettingsError, match=r"^FEDQ_STORAGE_URL needs s3fs: pip install 'fedq\[s3\]'$"):
            act("s3://bucket")
    assert "s3fs" in {Requirement(line).name for line in requirements("fedq", ["s3"])}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gs://bucket/fedq", "needs gcsfs: pip install gcsfs"),
        ("s3://", ": the URL names no bucket; give a folder, or a URL as s3://bucket/path"),
        ("ftps://bucket", ": Protocol not known: ftps; give a folder, or a URL as s3://bucket/path"),
    ],
)
def test_a_url_that_cannot_be_used_is_named_with_its_setting(url: str, words: str) -> None:
    for act in (open_storage, require_storage):
        with pytest.raises(SettingsError, match=rf"^FEDQ_ARCHIVE_URL:? ?{re.escape(words.lstrip(': '))}$"):
            act(url, "FEDQ_ARCHIVE_URL")


def _insist(act: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
    """Result of `act`, repeated as a worker does."""
    for _ in range(100):
        with suppress(StorageError):
            return act(*given, **named)
    raise AssertionError("the storage does not work")
