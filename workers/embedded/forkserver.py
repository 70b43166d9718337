"""Process of the embedded stack that has loaded the libraries, and forks workers and the reconciler:
`python -m workers.embedded.forkserver DESCRIPTOR`.

They share its pages: PyTorch alone is 370 MB in each process that imports it. It computes nothing
itself, and has one thread, so that a fork finds every lock free.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from math import inf
from pathlib import Path
from select import select

from fedcore.engine.process_tuning import release_freed_memory, release_library_pages
from fedcore.platform.watchdog import DESCRIPTOR, end_with_parent, make_resetter
from workers.embedded.gpus import VISIBLE

LOADED = (
    "workers.reconciler",
    "workers.worker",
    "workers.runner",
    # Which these load when they run.
    "celery.apps.worker",
    "celery.concurrency.prefork",
    "fedcore.engine.accelerated.cpu",
    "kombu.transport.redis",
)
NUMBER = struct.Struct("q")
"""A number that is sent about a process: its id as soon as it is forked, then its exit code, or
minus the number of a signal.
"""
LOOK_S = 0.2


class ForkedProcess:
    """A process that the fork server starts, with the methods of `subprocess.Popen` that its watcher
    needs.
    """

    def __init__(
        self,
        server: socket.socket,
        name: str,
        module: str,
        descriptors: Sequence[int],
        gpu: str | None = None,
    ) -> None:
        """Have `main` of a module run, with `descriptors` of its output and its watchdog, and this GPU
        alone if one is given.

        `server` is the connection to the fork server, which may not have begun to listen.
        """
        self._status, theirs = socket.socketpair()
        self._status.settimeout(0.0)
        self.pid = 0
        """0 until it is forked."""
        self.returncode: int | None = None
        with theirs:
            request = " ".join(filter(None, (name, module, gpu)))
            socket.send_fds(server, [request.encode()], [theirs.fileno(), *descriptors])

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with suppress(BlockingIOError):
            while self.returncode is None:
                message = self._status.recv(NUMBER.size)
                # Nothing: the fork server has ended, and has it end.
                (number,) = NUMBER.unpack(message) if message else (1,)
                if message and not self.pid:
                    self.pid = number
                else:
                    self.returncode = number
                    self._status.close()
        return self.returncode

    def wait(self, timeout_s: float = inf) -> int:
        """Wait for the exit code; raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select([self._status], [], [], None if left == inf else left)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, signum: signal.Signals) -> None:
        if self.poll() is not None:
            return
        if not self.pid:
            # The fork server is about to end, too.
            self.returncode = -signum
            self._status.close()
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signum)


def main(descriptor: str) -> None:
    """Fork processes until SIGTERM, or the supervisor is gone; then the system asks them to end."""
    end_with_parent(signal.SIGTERM)
    reset = make_resetter()
    gc.disable()  # While modules are loaded it finds nothing, and takes a fifth of the time.
    for module in LOADED:
        import_module(module)
    # In this process alone: the supervisor, which imports this module, loads no arrays.
    from fedcore.data.plan import compile_shuffling

    compile_shuffling()
    release_freed_memory()
    release_library_pages()
    # Else the collector would write to all pages of all processes. What it would free, 2 MB, is not
    # worth the quarter of a second in which a stack's first run waits for it.
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=int(descriptor)) as server:
        server.settimeout(LOOK_S)
        running: dict[int, socket.socket] = {}
        while True:
            reset()
            _reap(running)
            with suppress(TimeoutError):
                message, descriptors, _, _ = socket.recv_fds(server, 256, 3)
                if not message:
                    return
                _fork(message.decode(), descriptors, running)


def _fork(request: str, descriptors: Sequence[int], running: dict[int, socket.socket]) -> None:
    status, output, watchdog = descriptors
    name, module, *gpu = request.split()
    pid = os.fork()
    if pid == 0:
        end_with_parent(signal.SIGTERM)
        os.setsid()  # Ctrl-C is the supervisor's to pass on.
        os.dup2(output, sys.stdout.fileno())
        os.dup2(output, sys.stderr.fileno())
        os.close(status)
        for other in running.values():
            other.close()
        os.environ[DESCRIPTOR] = str(watchdog)
        if gpu:
            # In time: CUDA, which cannot be forked, is loaded by none but the workers.
            (os.environ[VISIBLE],) = gpu
        Path("/proc/self/comm").write_text(name)
        sys.exit(import_module(module).main())
    os.close(output)
    os.close(watchdog)
    running[pid] = socket.socket(fileno=status)
    running[pid].send(NUMBER.pack(pid))


def _reap(running: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            with running.pop(ended[0]) as status, suppress(OSError):
                status.send(NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))


if __name__ == "__main__":
    main(*sys.argv[1:])
