"""Folders and files that only their user can read: the state of an embedded stack and backups, which hold secrets of webhooks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Create `path` if needed, and close it to other users; a folder that belongs to another user keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(PermissionError):
        path.chmod(0o700)


@contextmanager
def private_files() -> Iterator[None]:
    """Close files and folders that this process creates within the block to other users; other threads see the same umask."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
