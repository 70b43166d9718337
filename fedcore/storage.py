"""Storage: checkpoints, models and users' data, in a folder or wherever an fsspec URL leads."""

import io
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import unquote, urlparse

from fedcore.errors import NotFoundError

_PIECE_BYTES = 1 << 20


class Storage(Protocol):
    """Named bytes. A key is a path with slashes; what is read is what some `put` wrote whole."""

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, in place of what was there; it outlives a crash from here on."""
        ...

    def put_file(self, key: str, file: Path) -> None:
        """Store the content of `file` under `key`, piece by piece; otherwise as `put`."""
        ...

    def open(self, key: str) -> BinaryIO:
        """What is stored under `key`, to be read in pieces; raises NotFoundError."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """The keys in the folder `prefix`, in order; none when there is no such folder."""
        ...

    def delete(self, key: str) -> None:
        """Forget `key`; does nothing when it is not there."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Forget everything in the folder `prefix`."""
        ...


def open_storage(url: str) -> Storage:
    """The storage at `url`: a folder, or a URL that fsspec knows (`s3://bucket/path`)."""
    parsed = urlparse(url)
    if parsed.scheme in ("", "file"):
        return FolderStorage(Path(unquote(parsed.path) if parsed.scheme else url))
    return RemoteStorage(url)


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
            raise _nothing(key) from error

    def keys(self, prefix: str) -> list[str]:
        folder = self._folder / prefix
        if not folder.is_dir():
            return []
        return sorted(f"{prefix}/{entry.name}" for entry in folder.iterdir() if not entry.name.startswith("."))

    def delete(self, key: str) -> None:
        (self._folder / key).unlink(missing_ok=True)

    def delete_prefix(self, prefix: str) -> None:
        shutil.rmtree(self._folder / prefix, ignore_errors=True)

    def _put(self, key: str, source: BinaryIO) -> None:
        path = self._folder / key
        self._make_folder(path.parent)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            shutil.copyfileobj(source, file, _PIECE_BYTES)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder that outlives a crash, with all above it that are not there yet."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


class RemoteStorage:
    """Objects of a store that writes an object whole or not at all."""

    def __init__(self, url: str) -> None:
        # Here, because a folder needs none of it.
        from fsspec.core import url_to_fs

        self._files, self._root = cast("tuple[Any, str]", url_to_fs(url))

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, data)

    def put_file(self, key: str, file: Path) -> None:
        path = self._path(key)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), path)

    def open(self, key: str) -> BinaryIO:
        try:
            return cast("BinaryIO", self._files.open(self._path(key), "rb"))
        except FileNotFoundError as error:
            raise _nothing(key) from error

    def keys(self, prefix: str) -> list[str]:
        # Other processes write here too, so what fsspec remembers of the folder is void.
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(self._path(prefix), detail=False)
        except FileNotFoundError:
            return []
        return sorted(f"{prefix}/{entry.rpartition('/')[2]}" for entry in entries)

    def delete(self, key: str) -> None:
        try:
            self._files.rm_file(self._path(key))
        except FileNotFoundError:
            return

    def delete_prefix(self, prefix: str) -> None:
        try:
            self._files.rm(self._path(prefix), recursive=True)
        except FileNotFoundError:
            return

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"


def _nothing(key: str) -> NotFoundError:
    return NotFoundError(f"nothing is stored under {key!r}; its files may have been removed")


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` outlive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
