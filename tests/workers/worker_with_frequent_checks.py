"""A worker that often checks whether messages reach it; with the argument DEAF, none does."""

import os
from collections.abc import Sequence
from pathlib import Path

from kombu.entity import Queue

from workers import liveness, worker
from workers.celery_app import own_queue, send_wakeup

PERIOD_S = 0.3
DEAF = "deaf"
CHECKS = "checks-{pid}"
"""The file, in the folder where the worker was started, that has a byte for each check."""


def main(arguments: Sequence[str] = ()) -> None:
    """As `workers.worker`."""
    # Waits of seconds are shown by waits of tenths of one.
    liveness.PERIOD_S = PERIOD_S
    check = liveness.WakeupMonitor.check

    def counted(self: liveness.WakeupMonitor) -> None:
        with Path(CHECKS.format(pid=os.getpid())).open("a") as checks:
            checks.write(".")
        check(self)

    liveness.WakeupMonitor.check = counted  # type: ignore[method-assign]
    if DEAF in arguments:
        elsewhere = own_queue()

        def wake_elsewhere(queue: str | Queue, broker: str) -> bool:
            return send_wakeup(elsewhere, broker)

        worker.queue_name = lambda queue: f"elsewhere.{queue}"  # type: ignore[attr-defined]
        worker.send_wakeup = wake_elsewhere  # type: ignore[attr-defined]
    worker.main()
