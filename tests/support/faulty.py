"""An object store that goes wrong when it is told to: `faulty://bucket`, all of whose buckets are
in this process.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

Fault = Callable[["FaultyFileSystem", str, bytes], None]
"""Replacement for a write of these bytes at this path."""


class BrokenStoreError(Exception):
    """Error of a storage client library that is no OSError."""


class FaultyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Objects in memory, and what is to go wrong with them."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = ["", "/bucket"]
    on_write: ClassVar[Callable[[str], Fault | None]] = lambda _path: None
    """Asked before every write what is to go wrong with it."""
    away: ClassVar[bool] = False
    """Nothing can be read, listed or removed."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix(f"{cls.protocol}:/"))
        return stripped

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        """As the class it is made from, or the fault."""
        fault = type(self).on_write(path)
        if fault is None:
            super().pipe_file(path, value, **options)
        else:
            fault(self, path, value)

    def _open(self, path: str, *given: Any, **options: Any) -> Any:
        self._answer()
        return super()._open(path, *given, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        """As the class it is made from."""
        self._answer()
        return super().ls(path, detail, **options)

    def rm_file(self, path: str) -> None:
        """As the class it is made from."""
        self._answer()
        super().rm_file(path)

    def keep(self, path: str, value: bytes) -> None:
        """Write for good."""
        super().pipe_file(path, value)

    def _answer(self) -> None:
        if type(self).away:
            raise BrokenStoreError("503 Slow Down")


def refused(_files: FaultyFileSystem, _path: str, _value: bytes) -> None:
    """The store does not want it."""
    raise BrokenStoreError("503 Slow Down")


def timed_out(_files: FaultyFileSystem, _path: str, _value: bytes) -> None:
    """The store does not answer, and its client notices."""
    raise TimeoutError("read timeout on endpoint")


def broken_off(files: FaultyFileSystem, path: str, value: bytes) -> None:
    """Half of it is there, and the connection is gone."""
    files.keep(path, value[: len(value) // 2])
    raise ConnectionResetError("connection reset by peer")


def half_written(files: FaultyFileSystem, path: str, value: bytes) -> None:
    """Half of it is there, and nobody says so."""
    files.keep(path, value[: len(value) // 2])


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
