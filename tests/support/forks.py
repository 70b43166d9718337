"""Workers and reconcilers in a moment: forked from a process that has loaded their libraries once.

What a start from nothing does is shown by the tests of `fedq up`, of the compose file and of the
worker's imports; everywhere else it only costs seconds.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.support.processes import dying_with_parent, ended

LOADED = ("tests.support.forks", "tests.support.loaded")


class Forked:
    """A running process, with what tests use of `subprocess.Popen`."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; raises TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, signum: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def template() -> ForkServerContext:
    """The `multiprocessing` context of a fork server that has imported `tests.support.loaded`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    return context


@contextmanager
def forked(
    module: str, *arguments: str, log: Path, environment: Mapping[str, str], folder: Path
) -> Iterator[Forked]:
    """`python -m module`, run in `folder`, its output in `log`: its `main` begins at once.

    At the end it is asked to stop.
    """
    process = template().Process(
        target=_run, name=module, args=(module, arguments, log, dict(environment), folder), daemon=True
    )
    process.start()
    running = Forked(process)
    with ended(running):
        yield running


def _run(
    module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path
) -> None:
    # The template ends with the tests, however they end, and its children with it: so none may keep
    # it alive.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    os.setsid()
    (dying_with_parent(signal.SIGTERM) or bool)()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    main = import_module(module).main
    sys.exit(main(arguments) if arguments else main())
