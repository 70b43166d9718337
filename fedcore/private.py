"""Folders and files that only their user can read.

For the state of an embedded stack and for backups, which hold secrets of webhooks.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Create `path` if needed, and close it to other users; another user's folder keeps its
    mode.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(PermissionError):
        path.chmod(0o700)


@contextmanager
def private_files() -> Iterator[None]:
    """Close what this process creates within the block to other users, in all of its threads."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
