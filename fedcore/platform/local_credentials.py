"""Key and address of an embedded stack: where they lie, and how clients on the same machine find
them.

The stack keeps its key in `api-key` in its folder, readable by its user alone, and while it runs
its address in `address`. A note among the user's own files says which folder the stack at each port
has, so that clients find both from wherever they are started.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def key_path(home: Path) -> Path:
    """Where the stack in `home` keeps its key."""
    return home / "api-key"


def load(home: Path) -> str | None:
    """The key of the stack in `home`, if it has one."""
    try:
        return key_path(home).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def save(home: Path, key: str) -> None:
    """Keep `key` for the stack in `home`."""
    _write(key_path(home), key + "\n")


@contextmanager
def advertised(url: str, home: Path) -> Iterator[None]:
    """While the block lasts, `discover` and `running_address` know that the stack in `home` listens at
    `url`.
    """
    note = _note(url)
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(note, str(home.absolute()))
    _write(_address_path(home), url)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)
        _address_path(home).unlink(missing_ok=True)


def running_address(home: Path) -> str | None:
    """The address of the stack that runs in `home`, or else of the only one that this user runs; None
    where there is none, or several in other folders.
    """
    if (own := _address_of(home)) is not None:
        return own
    notes = _notes().iterdir() if _notes().is_dir() else ()
    others = {found for note in notes if (found := _address_of(_home_in(note))) is not None}
    return others.pop() if len(others) == 1 else None


def discover(url: str) -> str | None:
    """The key of the embedded stack of this user that listens at `url`; None where there is
    none.
    """
    try:
        home = Path(_note(url).read_text(encoding="utf-8"))
        if urlsplit(url).hostname not in LOOPBACK and _address_of(home) != url:
            return None
        # The file may be left from a killed stack, and another program may listen there by now.
        return load(home) if is_running(home) else None
    except (OSError, ValueError):
        return None


def lock_path(home: Path) -> Path:
    """The file that the stack in `home` holds locked while it lives."""
    return home / "run" / "lock"


def is_running(home: Path) -> bool:
    """True if a stack holds the lock of `home`."""
    if sys.platform == "win32":
        return False
    import fcntl

    with lock_path(home).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _write(path: Path, text: str) -> None:
    """Write a file that none but its user can read, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    with os.fdopen(
        os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    partial.replace(path)


def _address_path(home: Path) -> Path:
    return home / "address"


def _address_of(home: Path) -> str | None:
    """The address of the stack that runs in `home`, if it is one of this user."""
    try:
        # Another user's folder may name any address, and would be sent this user's key.
        own = is_running(home) and _address_path(home).stat().st_uid == os.getuid()
        return _address_path(home).read_text(encoding="utf-8") if own else None
    except (OSError, ValueError):
        return None


def _home_in(note: Path) -> Path:
    try:
        return Path(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return note


def _note(url: str) -> Path:
    """Where the stack that listens on the port of `url` is written down."""
    return _notes() / str(urlsplit(url).port or 80)


def _notes() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fedq" / "stacks"
