"""Commands of FedQ as from a terminal, and what they print."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.forks import Forked
from tests.support.polling import eventually

START_S, STOP_S = 120.0, 60.0


@contextmanager
def started(place: Path, module: str, *arguments: str, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m module`, run in the folder `place`, its temporary files in `place/tmp` and its
    output in a log.

    `slice_seconds="1"` is FEDQ_SLICE_SECONDS.
    """
    (place / "tmp").mkdir(exist_ok=True)
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(place / "tmp"), "FEDQ_SLICE_SECONDS": "0.1"}
    own |= {f"FEDQ_{name.upper()}": value for name, value in settings.items()}
    with log_of(place).open("wb") as log:
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(
            command,
            cwd=place,
            env=os.environ | own,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_S)


def interrupted(process: subprocess.Popen[bytes] | Forked) -> int:
    """The exit code after Ctrl-C, which a terminal sends to the whole group."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(STOP_S)


def url_of(place: Path) -> str:
    """The URL that the stack started in `place` prints when it is ready."""
    ready = "FedQ is ready at "
    return eventually(
        lambda: log_of(place).read_text().partition(ready)[2].partition("\n")[0], timeout_s=START_S
    )


def log_of(place: Path) -> Path:
    """Where the output of the command started last in `place` is."""
    return place / "log"


def running_in(place: Path) -> list[str]:
    """The command lines of the processes that were started in `place`, and of their descendants."""
    found = psutil.process_iter(["cmdline", "environ"])
    return [
        " ".join(process.info["cmdline"] or ())
        for process in found
        if (process.info["environ"] or {}).get("TMPDIR") == str(place / "tmp")
    ]
