"""A temporary service: the embedded stack in a private folder that is deleted afterwards."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from celery.platforms import set_pdeathsig

from fedcore.platform import local_credentials
from fedq.client import ServiceUnreachableError

LOOK_S = 0.05
GRACE_S = 40.0
"""The stack gives its own processes 35 s to end."""


@contextmanager
def embedded_service(workers: int) -> Iterator[tuple[str, str]]:
    """Yield URL and API key of a service that runs as long as the block. Raises
    ServiceUnreachableError if it does not start.
    """
    with TemporaryDirectory(prefix="fedq-") as folder:
        home, ready = Path(folder), Path(folder, "ready")
        options = (f"--home={home}", "--port=0", f"--workers={workers}", f"--ready-file={ready}")
        with _supervisor(home, *options) as supervisor:
            yield _await(supervisor, ready), local_credentials.load(home) or ""


@contextmanager
def _supervisor(home: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the supervisor in its own process session, so that Ctrl-C reaches it only through this
    process.
    """
    # It shares no database, broker or storage with another stack.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDQ_")}
    with _log(home).open("wb") as log:
        supervisor = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "workers.embedded.supervisor", *options],
            cwd=home,  # where there is no `.env`
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_us if sys.platform == "linux" else None,  # noqa: PLW1509 - it makes one system call
        )
    try:
        yield supervisor
    finally:
        supervisor.terminate()
        supervisor.wait(GRACE_S)


def _end_with_us() -> None:
    set_pdeathsig("TERM")


def _await(supervisor: subprocess.Popen[bytes], ready: Path) -> str:
    """Wait until the service is ready and return its URL. The supervisor itself gives up if that
    takes too long.
    """
    while not ready.exists():
        if supervisor.poll() is not None:
            raise ServiceUnreachableError(
                f"the service did not start:\n{_log(ready.parent).read_text(errors='replace')}"
            )
        time.sleep(LOOK_S)
    return ready.read_text()


def _log(home: Path) -> Path:
    return home / "supervisor.log"
