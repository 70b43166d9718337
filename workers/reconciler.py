"""The reconciler: sees that every run that waits is known to a worker, and that no run is lost with
its worker.

    python -m workers.reconciler

Several may run at once; each run is seen to by one of them. While there is none, runs still begin
by the nudges of the API. In the same process webhooks are sent and files of what was deleted are
removed, on threads of their own.
"""

import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import structlog

from fedcore.platform import watchdog
from fedcore.platform.logging import configure
from fedcore.platform.storage import open_storage
from fedcore.platform.store import UNAVAILABLE, Database, audit, open_database, recovery, workers
from fedcore.platform.wakeups import WakeupNotifier
from fedcore.settings import Settings, settings
from workers.celery_app import send_wakeup
from workers.removal import removing
from workers.webhook_dispatcher import dispatching

PERIOD_S = 1.0
NUDGE_AGAIN_S = 5.0
"""A run that has waited for this long since its last nudge is announced again: the message may be
lost.
"""
FORGET_WORKER_S = 3_600.0

log = structlog.stdlib.get_logger(__name__)


def main() -> None:
    """Look every second, until SIGTERM or SIGINT."""
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    configured = settings()
    configure(configured, "reconciler")
    run_forever(open_database(configured.database, idle_s=configured.lease_seconds), configured, ended)


def run_forever(database: Database, configured: Settings, ended: threading.Event) -> None:
    """Reconcile every second, send what webhooks are to be told, and remove files, until
    `ended`.
    """
    reset_watchdog = watchdog.resetter()
    storage = open_storage(configured.storage)
    wakeups = WakeupNotifier(partial(send_wakeup, broker=configured.broker))
    with dispatching(database, configured), removing(database, storage), closing(wakeups):
        while not ended.wait(PERIOD_S):
            reset_watchdog()
            try:
                reconcile(database, configured, wakeups)
            except UNAVAILABLE as error:
                log.warning("the database is away: %s", error)
            except Exception:
                # Whatever it is: without a reconciler, runs of lost workers would stay lost.
                log.exception("not reconciled")


def reconcile(database: Database, configured: Settings, wakeups: WakeupNotifier) -> None:
    """Take runs from workers that are gone, nudge a worker of every queue in which a run waits
    unannounced, and let old entries go.
    """
    lost, queues = reconcile_once(database, configured)
    if lost:
        log.warning("runs had lost their workers", run_ids=list(lost))
    wakeups.notify(queues)
    if configured.audit_retention_days is not None:
        with database.transaction() as session:
            removed = audit.prune(session, configured.audit_retention_days * 86_400)
        if removed:
            log.info("old entries of the audit log were removed", entries=removed)


def reconcile_once(database: Database, configured: Settings) -> tuple[Sequence[str], Sequence[str]]:
    """The ids of the runs just taken from their workers, and the queues to be nudged."""
    with database.transaction() as session:
        lost = recovery.requeue_expired(session, configured.attempts, backoff_s=configured.backoff_seconds)
        # Nudges that nobody is there to take would pile up. One for a queue is enough: a worker
        # that finds a run calls the next worker.
        served = sorted(workers.memory_limits(session, configured.seen_seconds))
        queues = [queue for queue in served if recovery.runs_to_wake(session, queue, NUDGE_AGAIN_S)]
        workers.forget(session, FORGET_WORKER_S)
    return lost, queues


if __name__ == "__main__":
    main()
