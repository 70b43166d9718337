"""State of a disk after a power loss: files and folders as they were last synchronised."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from unittest.mock import patch


class PowerLossError(BaseException):
    """Nothing more is done by this process."""


Listing = dict[str, int]
"""The names in a folder, and the inode of each."""


class Disk:
    """Remembers what is synchronised in and below a folder, which is taken to be there as it is
    now. Changes in place.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[int, Listing] = {}
        self._files: dict[int, bytes] = {}
        for folder, _, files in os.walk(root):
            self._note_folder(folder)
            for name in files:
                self._note_file(Path(folder, name))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """In the block, os.fsync of this process tells this disk, and costs nothing."""
        with patch("os.fsync", self._synchronise):
            yield

    @contextmanager
    def failing(self, times: int) -> Iterator[None]:
        """As `recording`, until the power fails when os.fsync has been called so many times.

        Then what was not on the disk is gone.
        """
        left = dict[Path, bytes | None]()
        calls = count(1)

        def synchronise(descriptor: int) -> None:
            if next(calls) > times:
                left.update((file, self.survives(file)) for file in self._root.rglob("*") if file.is_file())
                raise PowerLossError
            self._synchronise(descriptor)

        with patch("os.fsync", synchronise), suppress(PowerLossError):
            yield
        for file, content in left.items():
            if content is None:
                file.unlink(missing_ok=True)
            elif file.parent.is_dir():
                file.write_bytes(content)

    def survives(self, path: Path) -> bytes | None:
        """Content of a file after the loss; None if its name is lost, too."""
        inode = self._root.stat().st_ino
        for part in path.relative_to(self._root).parts:
            found = self._folders.get(inode, {}).get(part)
            if found is None:
                return None
            inode = found
        return self._files.get(inode, b"")

    def _synchronise(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._note_folder(path)
        else:
            self._note_file(path)

    def _note_folder(self, folder: str | Path) -> None:
        self._folders[Path(folder).stat().st_ino] = {
            entry.name: entry.inode() for entry in os.scandir(folder)
        }

    def _note_file(self, file: Path) -> None:
        self._files[file.stat().st_ino] = file.read_bytes()
