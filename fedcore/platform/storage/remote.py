"""Objects of a store that fsspec knows: S3, Google Cloud Storage, Azure and others."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from fedcore.errors import ResourceNotFoundError

TIMEOUT_S = 300.0
"""A store that takes longer for one file is taken to hang."""

Result = TypeVar("Result")


class RemoteStorage:
    """Objects of a store that writes an object whole or not at all.

    Where one does not, that is an error.
    """

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        # Here, because a folder needs none of it.
        from fsspec.core import url_to_fs

        self._files, self._root = cast("tuple[Any, str]", url_to_fs(url))
        self._timeout_s = timeout_s

    def put(self, key: str, data: bytes) -> None:
        self._put(key, len(data), lambda path: self._files.pipe_file(path, data))

    def put_file(self, key: str, file: Path) -> None:
        self._put(key, file.stat().st_size, lambda path: self._files.put_file(str(file), path))

    def open(self, key: str) -> BinaryIO:
        try:
            return cast("BinaryIO", self._within(lambda: self._files.open(self._path(key), "rb")))
        except FileNotFoundError as error:
            raise ResourceNotFoundError(nothing(key)) from error

    def keys(self, prefix: str) -> list[str]:
        # Other processes write here too, so what fsspec remembers of the folder is void.
        self._files.invalidate_cache()
        try:
            entries = self._within(lambda: self._files.ls(self._path(prefix), detail=False))
        except FileNotFoundError:
            return []
        return sorted(f"{prefix}/{entry.rpartition('/')[2]}" for entry in entries)

    def delete(self, key: str) -> None:
        try:
            self._within(lambda: self._files.rm_file(self._path(key)))
        except FileNotFoundError:
            return

    def delete_prefix(self, prefix: str) -> None:
        try:
            self._within(lambda: self._files.rm(self._path(prefix), recursive=True))
        except FileNotFoundError:
            return

    def _put(self, key: str, size: int, write: Callable[[str], None]) -> None:
        path = self._path(key)

        def whole() -> int:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            write(path)
            return int(self._files.size(path))

        stored = self._within(whole)
        if stored != size:
            raise OSError(f"{stored} of {size} bytes of {key} were stored")

    def _within(self, act: Callable[[], Result]) -> Result:
        """Call `act` in a thread of its own and return its result.

        Raises TimeoutError when it takes too long, and abandons the thread.
        """
        outcome: list[Result | BaseException] = []

        def run() -> None:
            try:
                outcome.append(act())
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=run, name="storage", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if not outcome:
            raise TimeoutError(f"the storage has not answered for {self._timeout_s:g} s")
        (found,) = outcome
        if isinstance(found, BaseException):
            raise found
        return found

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"


def nothing(key: str) -> str:
    """Error message for a `key` under which nothing is stored."""
    return f"nothing is stored under {key!r}; its files may have been removed"
