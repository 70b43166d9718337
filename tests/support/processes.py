"""Servers as child processes that die with the test run, however it ends."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

PR_SET_PDEATHSIG = 1
STOP_S = 30.0


class Child(Protocol):
    """A process that can be ended."""

    def send_signal(self, sig: int, /) -> None: ...
    def wait(self, timeout: float | None = None, /) -> int: ...
    def kill(self) -> None: ...


@contextmanager
def served(
    command: Sequence[str], log: Path, *, stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """`command` as a running child; at the end it is asked to `stop`, and killed when it does
    not.
    """
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the tests; they stop the server
            preexec_fn=dying_with_parent(stop),  # noqa: PLW1509 - it makes one system call
            **options,
        )
    with ended(child, stop):
        yield child


@contextmanager
def ended(child: Child, stop: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """At the end `child` is asked to `stop`, and killed when it does not."""
    try:
        yield
    finally:
        child.send_signal(stop)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def dying_with_parent(stop: signal.Signals) -> Callable[[], object] | None:
    """Make the kernel send `stop` to this child when its parent ends, even by kill -9; run before
    anything else.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(stop))
