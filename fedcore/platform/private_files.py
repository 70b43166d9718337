"""Folders and files that only their owner can read: state of the embedded stack and backups."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Create `path` if needed and set mode 0700; a folder of another user keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(PermissionError):
        path.chmod(0o700)


@contextmanager
def private_files() -> Iterator[None]:
    """Make files created within the block, by any thread, unreadable for other users."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
