"""Objects of a store that fsspec knows: S3, Google Cloud Storage, Azure and others."""

import errno
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from fedcore.errors import ResourceNotFoundError

TIMEOUT_S = 300.0
"""A store that takes longer for one file is taken to hang."""
_REFUSALS = re.compile("Auth|Credential|Validation")
"""Parts of the names of errors that packages of stores have for requests that would be refused
again.
"""

Result = TypeVar("Result")


class RemoteStorage:
    """Objects of a store that writes an object whole or not at all.

    Where one does not, that is an error. Buckets are never created: that is for the operator, who
    decides on encryption and lifetimes.
    """

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """Raises ImportError where the package of the store is missing, and ValueError for other URLs."""
        # Here, because a folder needs none of it.
        from fsspec.core import url_to_fs

        self._files, self._root = cast("tuple[Any, str]", url_to_fs(url))
        self._bucket = self._root.strip("/").partition("/")[0]
        if not self._bucket:
            raise ValueError("the URL names no bucket")
        self._timeout_s = timeout_s

    def check(self) -> None:
        """Ask the store for the bucket.

        Raises FileNotFoundError if there is none, PermissionError if it refuses these credentials, and
        other errors of the store's package if it does not answer.
        """
        try:
            self._within(self._ask_for_bucket)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no bucket {self._bucket!r}") from error
        except Exception as error:
            if not _is_refusal(error):
                raise
            raise PermissionError(
                f"access to the bucket {self._bucket!r} is refused: {type(error).__name__}: {error}"
            ) from error

    def _ask_for_bucket(self) -> None:
        try:
            self._files.info(self._bucket)
        except FileNotFoundError:
            # To some releases of s3fs and gcsfs this is an empty one, too.
            self._files.ls(self._bucket)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, len(data), lambda path: self._files.pipe_file(path, data))

    def put_file(self, key: str, file: Path) -> None:
        self._put(key, file.stat().st_size, lambda path: self._files.put_file(str(file), path))

    def open(self, key: str) -> BinaryIO:
        try:
            return cast("BinaryIO", self._within(lambda: self._files.open(self._path(key), "rb")))
        except FileNotFoundError as error:
            self.check()
            raise ResourceNotFoundError(describe_missing(key)) from error

    def keys(self, prefix: str) -> list[str]:
        try:
            entries = self._within(lambda: self._files.ls(self._path(prefix), detail=False))
        except FileNotFoundError:
            self.check()
            return []
        return sorted(f"{prefix}/{entry.rpartition('/')[2]}" for entry in entries)

    def delete(self, key: str) -> None:
        try:
            self._within(lambda: self._files.rm_file(self._path(key)))
        except FileNotFoundError:
            self.check()

    def delete_prefix(self, prefix: str) -> None:
        try:
            self._within(lambda: self._files.rm(self._path(prefix), recursive=True))
        except FileNotFoundError:
            self.check()

    def _put(self, key: str, size: int, write: Callable[[str], None]) -> None:
        path = self._path(key)

        def whole() -> int:
            write(path)
            return int(self._files.size(path))

        stored = self._within(whole)
        if stored != size:
            raise OSError(f"{stored} of {size} bytes of {key} were stored")

    def _within(self, act: Callable[[], Result]) -> Result:
        """Call `act` in a thread of its own and return its result.

        Raises TimeoutError when it takes too long, and abandons the thread.
        """
        # Other processes write here too, so what fsspec remembers of folders is void.
        self._files.invalidate_cache()
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


def package_of(scheme: str) -> str:
    """Package that fsspec needs for URLs of a `scheme` that it knows, and the command to install it."""
    from fsspec.registry import known_implementations

    package = str(known_implementations[scheme]["class"]).partition(".")[0]
    return f"{package}: pip install " + ("'fedq[s3]'" if package == "s3fs" else package)


def _is_refusal(error: Exception) -> bool:
    """True if a repetition of the request would fail, too."""
    refused = isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EINVAL
    return refused or _REFUSALS.search(type(error).__name__) is not None


def describe_missing(key: str) -> str:
    """Error message for a `key` under which nothing is stored."""
    return f"nothing is stored under {key!r}; its files may have been removed"
