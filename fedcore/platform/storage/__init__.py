"""Storage: checkpoints, models and users' data, in a folder or an object store that fsspec knows."""

import errno
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import unquote, urlparse

from fedcore.errors import FedcoreError, ResourceNotFoundError, SettingsError, StorageError
from fedcore.platform.storage.remote import TIMEOUT_S, RemoteStorage, describe_missing, package_of

if TYPE_CHECKING:
    from fedcore.settings import Settings

CHECK_S = 10.0
"""Longest wait of a process that starts for its object store."""
_PIECE_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

log = logging.getLogger(__name__)


class Storage:
    """Named bytes in a folder or an object store. A key is a path with slashes; what is read is what some
    `put` wrote whole.

    Faults, whatever they are, say what could not be done: each is a StorageError.
    """

    def __init__(self, inner: "FolderStorage | RemoteStorage") -> None:
        self._inner = inner

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, in place of what was there; it outlives a crash from here on."""
        with _translated_errors(f"{key} could not be stored"):
            self._inner.put(key, data)

    def put_file(self, key: str, file: Path) -> None:
        """Store the content of `file` under `key`, piece by piece; otherwise as `put`."""
        with _translated_errors(f"{key} could not be stored"):
            self._inner.put_file(key, file)

    def open(self, key: str) -> BinaryIO:
        """Open the file stored under `key` for reading; raises ResourceNotFoundError."""
        with _translated_errors(f"{key} could not be read"):
            return cast("BinaryIO", _ErrorTranslatingReader(self._inner, key))

    def keys(self, prefix: str) -> list[str]:
        """The keys in the folder `prefix`, in order; none when there is no such folder."""
        with _translated_errors(f"{prefix} could not be listed"):
            return self._inner.keys(prefix)

    def delete(self, key: str) -> None:
        """Forget `key`; does nothing when it is not there."""
        with _translated_errors(f"{key} could not be removed"):
            self._inner.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """Forget everything in the folder `prefix`."""
        with _translated_errors(f"{prefix} could not be removed"):
            self._inner.delete_prefix(prefix)


def open_storage(url: str, setting: str = "FEDQ_STORAGE_URL") -> Storage:
    """The storage at `url`: a folder, or an object store that fsspec knows (`s3://bucket/path`).

    Connects to nothing. Raises SettingsError, which names `setting`, for another URL, and where a
    package is missing.
    """
    folder = folder_of(url)
    return Storage(_open_remote(url, setting, TIMEOUT_S) if folder is None else FolderStorage(folder))


def require_storage(url: str, setting: str = "FEDQ_STORAGE_URL") -> None:
    """Check the storage that a process is about to use; raises SettingsError as `open_storage`, and if
    the folder cannot be made, or the bucket does not exist or may not be used.

    A store that does not answer may do so later: that is only logged.
    """
    folder = folder_of(url)
    if folder is not None:
        _require_folder(folder, setting)
        return
    try:
        _open_remote(url, setting, CHECK_S).check()
    except FileNotFoundError as error:
        raise SettingsError(f"{setting}: {error}; create it, or correct the URL") from error
    except PermissionError as error:
        raise SettingsError(f"{setting}: {error}; check the credentials and what they allow") from error
    except SettingsError:
        raise
    except Exception as error:  # Whatever a library for a store raises.
        log.warning("%s: the storage does not answer: %s: %s", setting, type(error).__name__, error)


def _require_folder(folder: Path, setting: str) -> None:
    """Raise SettingsError unless `folder` is there or could be made; it is made when something is stored."""
    try:
        if not folder.is_dir():
            above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
            tempfile.TemporaryFile(dir=above).close()
    except OSError as error:
        raise SettingsError(
            f"{setting}: the folder {folder} cannot be made: {error.strerror}; give another one"
        ) from error


def require_storage_and_archive(settings: "Settings") -> None:
    """`require_storage` for a process that also archives experiments, if the settings say so."""
    require_storage(settings.storage)
    if settings.archive is not None:
        require_storage(settings.archive, "FEDQ_ARCHIVE_URL")


def folder_of(url: str) -> Path | None:
    """The folder at `url`; None if it is the URL of an object store."""
    parsed = urlparse(url)
    if parsed.scheme in ("", "file"):
        return Path(unquote(parsed.path) if parsed.scheme else url)
    return None


def _open_remote(url: str, setting: str, timeout_s: float) -> RemoteStorage:
    try:
        return RemoteStorage(url, timeout_s)
    except ImportError as error:
        raise SettingsError(f"{setting} needs {package_of(urlparse(url).scheme)}") from error
    except ValueError as error:
        raise SettingsError(f"{setting}: {error}; give a folder, or a URL as s3://bucket/path") from error


class _ErrorTranslatingReader(io.BufferedIOBase):
    """A stored file whose reads raise StorageError: an object store may fail in the middle of one.

    Raises ResourceNotFoundError for an object that is deleted meanwhile.
    """

    def __init__(self, storage: "FolderStorage | RemoteStorage", key: str) -> None:
        self._inner, self._storage, self._key = storage.open(key), storage, key
        self._what = f"{key} could not be read"

    @property
    def name(self) -> str | None:
        """Path of the file, which may be mapped; None for an object."""
        return getattr(self._inner, "name", None)

    def read(self, size: int | None = -1, /) -> bytes:
        with _translated_errors(self._what):
            try:
                return self._inner.read(-1 if size is None else size)
            except FileNotFoundError:
                # Says that it is gone, if it is, and not its bucket.
                self._storage.open(self._key).close()
                raise

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with _translated_errors(self._what):
            return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._inner.seekable()

    def close(self) -> None:
        self._inner.close()
        super().close()


def read(storage: Storage, key: str) -> bytes:
    """Everything that is stored under `key`; raises ResourceNotFoundError."""
    with storage.open(key) as file:
        return file.read()


def save_as(source: BinaryIO, path: Path) -> None:
    """Write the content of `source`, and close it, to a file that is at `path` whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with source, partial.open("wb") as file:
        shutil.copyfileobj(source, file)
    partial.replace(path)


@contextmanager
def _translated_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (FedcoreError, MemoryError):
        raise
    except Exception as error:  # Whatever a library for a store raises.
        reason = "the storage is full" if getattr(error, "errno", None) in _FULL else "the storage failed"
        raise StorageError(f"{reason}: {what}: {type(error).__name__}: {error}") from error


class FolderStorage:
    """Files in a folder of this machine, or one that several machines mount."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, data: bytes) -> None:
        self._put(key, io.BytesIO(data))

    def put_file(self, key: str, file: Path) -> None:
        with file.open("rb") as source:
            self._put(key, source)

    def open(self, key: str) -> BinaryIO:
        try:
            return (self._folder / key).open("rb")
        except FileNotFoundError as error:
            raise ResourceNotFoundError(describe_missing(key)) from error

    def keys(self, prefix: str) -> list[str]:
        folder = self._folder / prefix
        if not folder.is_dir():
            return []
        return sorted(
            f"{prefix}/{entry.name}" for entry in folder.iterdir() if not entry.name.startswith(".")
        )

    def delete(self, key: str) -> None:
        (self._folder / key).unlink(missing_ok=True)

    def delete_prefix(self, prefix: str) -> None:
        folder = self._folder / prefix
        while folder.exists():
            # Of what is gone, another has removed it meanwhile.
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)

    def _put(self, key: str, source: BinaryIO) -> None:
        path = self._folder / key
        self._make_folder(path.parent)
        partial = path.with_name(f".{path.name}.partial")
        try:
            with partial.open("wb") as file:
                shutil.copyfileobj(source, file, _PIECE_BYTES)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            # Where the disk is full, what was written of it would keep it so.
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder that outlives a crash, with all above it that are not there yet."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` outlive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
