"""A child process of the supervisor: started again when it ends or hangs, gone when the supervisor
is.
"""

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from fedcore.platform.watchdog import DESCRIPTOR, Watchdog, end_with_parent
from workers.embedded.forkserver import ForkedProcess

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
STEADY_S = 20.0
"""A child that has lived for this long is taken to work; its next end counts as its first."""

log = logging.getLogger(__name__)


class ManagedProcess:
    """One command of the stack; its output goes to a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_file: Path,
        keep: Sequence[int] = (),
    ) -> None:
        """`keep` are file descriptors that the command inherits."""
        self.name, self.log_file = name, log_file
        self.watchdog = Watchdog()
        writer = self.watchdog.writer
        self._command, self._environment, self._keep = (
            command,
            {**environment, DESCRIPTOR: str(writer)},
            (*keep, writer),
        )
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._began = self._start_at = 0.0
        self.ended_early = 0
        """How often in a row it has ended soon after its start."""

    def start(self) -> None:
        """Run the command, in a session of its own: Ctrl-C is the supervisor's to pass on."""
        self.watchdog.begin()
        with self.log_file.open("ab") as output:
            self._process = self._run(output)
        self._began = time.monotonic()

    def keep_alive(self) -> None:
        """Start it again if it has ended: at once the first time, then after longer and longer
        pauses.

        Kill it first if it hangs.
        """
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._note_end(code)
        elif self._process is not None and self._process.pid and self.watchdog.expired():
            self._kill_hanging(self._process.pid)
        if self._process is None and time.monotonic() >= self._start_at:
            self.start()

    def ask_to_end(self) -> None:
        """Send SIGTERM, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, deadline: float) -> None:
        """Wait until it has ended; kill it at `deadline`, in seconds of the monotonic clock."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("%s did not end in time and is killed", self.name)
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Watch it no more."""
        self.watchdog.close()

    def _run(self, output: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
        return subprocess.Popen(  # noqa: S603 - our own commands
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=self._keep,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - it makes one system call
        )

    def _kill_hanging(self, pid: int) -> None:
        log.error("%s hangs and is killed; see %s", self.name, self.log_file)
        # Its whole group: what a worker's child has locked, or an upload's reader, must not outlive
        # it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self.watchdog.reset()

    def _note_end(self, code: int) -> None:
        steady = time.monotonic() - self._began > STEADY_S
        self.ended_early = 0 if steady else self.ended_early + 1
        pause = 0.0 if steady else min(FIRST_PAUSE_S * 2 ** (self.ended_early - 1), LONGEST_PAUSE_S)
        log.warning(
            "%s ended with code %d, starting it again in %.1f s; see %s",
            self.name,
            code,
            pause,
            self.log_file,
        )
        self._process, self._start_at = None, time.monotonic() + pause


class ManagedFork(ManagedProcess):
    """A module of the stack, run by the fork server."""

    def __init__(
        self, name: str, module: str, server: socket.socket, log_file: Path, gpu: str | None = None
    ) -> None:
        """`server` is the connection to the fork server; `gpu` the only one that the module may use."""
        super().__init__(name, (module,), {}, log_file)
        self._module, self._server, self._gpu = module, server, gpu

    def _run(self, output: IO[bytes]) -> ForkedProcess:
        descriptors = output.fileno(), self.watchdog.writer
        return ForkedProcess(self._server, self.name, self._module, descriptors, self._gpu)
