"""A worker: Celery's prefork pool with a single child, which executes rounds.

    python -m workers.worker

The parent never loads the tensor library, so the child can be killed and replaced, and a GPU
belongs to one child only.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import Celery, signals

from fedcore.errors import SettingsError
from fedcore.platform import tracing, watchdog
from fedcore.platform.logging import configure
from fedcore.platform.starting import exit_on_errors
from fedcore.platform.storage import require_storage
from fedcore.platform.store import require_schema
from fedcore.platform.wakeups import require_broker
from fedcore.settings import Settings, settings
from fedcore.spec.components import check_packages
from workers.celery_app import WAKEUP_TASK, celery_app, own_queue, queue_name, send_wakeup
from workers.liveness import ChildWatchdog, WakeupMonitor
from workers.memory import requeue_oom_killed

if TYPE_CHECKING:
    from workers.runner import Runner

PATIENCE_S = 5.0
"""Least time without progress before a child is killed, however short the lease: loading a library
on a busy machine takes long.
"""

log = logging.getLogger(__name__)


def _build_runner(settings: Settings, worker_id: str, stopping: Callable[[], bool]) -> Runner:
    from workers.runner import build_runner

    return build_runner(settings, worker_id, stopping)


def main(build: Callable[[Settings, str, Callable[[], bool]], Runner] = _build_runner) -> None:
    """Serve the queues of the settings until SIGTERM, with the runner that `build` makes.

    Then finish and commit the current round, and exit 0; or 1 when that takes too long.
    """
    with exit_on_errors():
        check_packages()
        configured = settings()
        configure(configured, "worker")
        require_schema(configured.database)
        watchdog.reset_from_thread()
        # Here too, so that an unusable URL ends the worker before it is ready.
        require_storage(configured.storage)
        require_broker(configured.broker)
    worker = WorkerProcess(configured, build)
    worker.watch()
    app = celery_app(configured.broker)
    worker.attach(app)
    # Celery's command line would load a shell, and 8 MB with it.
    running = app.Worker(
        hostname=f"fedq-{os.getpid()}@{socket.gethostname()}",
        pool="prefork",
        concurrency=1,
        queues=[*map(queue_name, configured.queues), worker.queue.name],
        loglevel="INFO",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    running.start()
    sys.exit(running.exitcode or worker.exit_code)


class WorkerProcess:
    """The two halves of a worker, before and after its fork; they share a flag and a watchdog."""

    def __init__(
        self, settings: Settings, build: Callable[[Settings, str, Callable[[], bool]], Runner]
    ) -> None:
        self._settings, self._build = settings, build
        # Shared memory without a lock: a child killed at any moment cannot leave it locked.
        self._stop_flag = mmap.mmap(-1, 1)
        self._useless_flag = mmap.mmap(-1, 1)
        self._watchdog = ChildWatchdog(max(settings.lease_seconds, PATIENCE_S))
        self.queue = own_queue()
        """Queue of the messages to this worker alone."""
        self._runner: Runner | None = None
        self._monitor: WakeupMonitor | None = None

    @property
    def exit_code(self) -> int:
        """1 if the child could not be started, which tells a supervisor of the failure."""
        return self._useless_flag[0]

    def watch(self) -> None:
        """Kill a child that has stopped; Celery starts another one."""
        self._watchdog.start()

    def attach(self, app: Celery) -> None:
        """Handle wake-ups, in the child."""
        app.amqp.queues.add(self.queue)
        app.task(self._work, name=WAKEUP_TASK)
        # Where a handler is connected, Celery does not configure logging.
        signals.setup_logging.connect(lambda **_: None, weak=False)
        signals.worker_shutting_down.connect(self._ask_to_stop, weak=False)
        signals.worker_process_init.connect(self._start_child, weak=False)
        signals.worker_process_shutdown.connect(self._end_child, weak=False)

    def _ask_to_stop(self, **_: Any) -> None:
        self._stop_flag[0] = 1
        over = threading.Timer(self._settings.grace_seconds, self._give_up)
        over.daemon = True
        over.start()

    def _give_up(self) -> None:
        log.error(
            "the current round did not end within %g s, its run is left to its lease",
            self._settings.grace_seconds,
        )
        self._watchdog.kill()
        os._exit(1)

    def _start_child(self, **_: Any) -> None:
        # The parent is to end it, after its round. Slurm and terminals signal all processes, those of
        # bundles too, which inherit this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        identity = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        configure(self._settings, "worker", worker_id=identity)
        tracing.configure("worker", **{"service.instance.id": identity})
        # Before the tensor library, which takes seconds to load: the leases of those runs are
        # running out.
        requeue_oom_killed(self._settings)
        try:
            # Here, after the fork: the tensor library, a GPU and connections are the child's own.
            self._runner = self._build(self._settings, identity, lambda: self._stop_flag[0] == 1)
        except Exception as error:
            # Celery would log it and give this child work all the same.
            trace = None if isinstance(error, SettingsError) else error
            log.log(logging.ERROR, "this worker cannot execute rounds: %s", error, exc_info=trace)
            self._useless_flag[0] = 1
            os.kill(os.getppid(), signal.SIGTERM)
            os._exit(1)
        self._watchdog.attach()
        self._monitor = WakeupMonitor(
            lambda: send_wakeup(self.queue, self._settings.broker), self._end_unreachable
        )
        self._monitor.start()

    def _end_unreachable(self) -> None:
        log.error("no message reaches this worker though the broker takes them: it ends, to be started again")
        self._watchdog.abort()

    def _work(self) -> None:
        assert self._runner is not None
        assert self._monitor is not None
        with self._monitor.handling():
            self._runner.work()

    def _end_child(self, **_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which Celery ends it
        if self._monitor is not None:
            self._monitor.stop()
        if self._runner is not None:
            self._runner.close()
            self._watchdog.detach()


if __name__ == "__main__":
    main()
