"""Servers as child processes that die with the test run, however it ends."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


@contextmanager
def served(
    command: Sequence[str], log: Path, *, stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """`command` as a running child; at the end it is asked to `stop`, and killed when it does not."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the tests; they stop the server
            preexec_fn=_dies_with_parent(stop),  # noqa: PLW1509 - it makes one system call
            **options,
        )
    try:
        yield child
    finally:
        _end(child, stop)


def _end(child: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    child.send_signal(stop)
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _dies_with_parent(stop: signal.Signals) -> Callable[[], None] | None:
    """What the child runs first: the kernel is to send it `stop` when the tests are gone, even by kill -9."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(stop))
