"""The reconciler: requeues runs whose lease has expired, and repeats lost wake-ups.

    python -m workers.reconciler

Several may run at once; each run is handled by one of them. While there is none, runs still start
by the wake-ups of the API. Webhooks are sent, files of deleted rows removed, and old experiments
archived and deleted, on threads of the same process: a receiver or a storage may take minutes, for
which runs that lost their workers must not wait.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial

import structlog

from fedcore.errors import StorageError
from fedcore.platform import watchdog
from fedcore.platform.logging import configure
from fedcore.platform.starting import exit_on_errors
from fedcore.platform.storage import Storage, open_storage, require_storage_and_archive
from fedcore.platform.store import (
    UNAVAILABLE,
    Database,
    audit,
    bundles,
    driver_error,
    open_database,
    recovery,
    removals,
    require_schema,
    weights,
    workers,
)
from fedcore.platform.store.backoff import BACKOFF_S, MAX_ATTEMPTS
from fedcore.platform.wakeups import WakeupNotifier, require_broker
from fedcore.settings import Settings, settings
from fedcore.spec.components import check_packages
from workers.celery_app import send_wakeup
from workers.webhook_dispatcher import dispatch_webhooks

PERIOD_S = 1.0
FORGET_WORKER_S = 3_600.0
REMOVALS_AT_ONCE = 100
REMOVAL_LEASE_S = 1_200.0
"""Seconds until claimed removals are due again; an operation of a storage that hangs is given up
after `fedcore.platform.storage.remote.TIMEOUT_S`.
"""
THREAD_GRACE_S = 5.0
"""For the current removal, or transaction, when the process is asked to end; a removal is then left
to its lease.
"""

log = structlog.stdlib.get_logger(__name__)


def main() -> None:
    """Reconcile every second, until SIGTERM or SIGINT."""
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    with exit_on_errors():
        check_packages()
        configured = settings()
        configure(configured, "reconciler")
        require_schema(configured.database)
        require_storage_and_archive(configured)
        require_broker(configured.broker)
        database = open_database(configured.database, idle_s=configured.lease_seconds)
    run_forever(database, configured, ended)


def run_forever(database: Database, settings: Settings, ended: threading.Event) -> None:
    """Reconcile every second, send webhooks, and remove files and old experiments, until `ended`."""
    reset_watchdog = watchdog.make_resetter()
    storage, leases = open_storage(settings.storage), recovery.LeaseWatch(settings.lease_seconds)
    wakeups = WakeupNotifier(partial(send_wakeup, broker=settings.broker))
    removing = _in_thread("removal", partial(remove_due, database, storage))
    expiring = _expiring(database, storage, settings)
    with dispatch_webhooks(database, settings), removing, expiring, closing(wakeups):
        while not ended.wait(PERIOD_S):
            reset_watchdog()
            try:
                reconcile(database, settings, wakeups, leases)
            except UNAVAILABLE as error:
                log.warning("the database is away: %s", driver_error(error))
            except Exception:
                # Go on: without a reconciler, runs of lost workers would stay lost.
                log.exception("not reconciled")


def reconcile(
    database: Database, settings: Settings, wakeups: WakeupNotifier, leases: recovery.LeaseWatch
) -> None:
    """Requeue runs of workers that are gone, wake a worker of every queue in which runs wait for idle
    ones, and delete old audit entries.
    """
    lost, queues = reconcile_once(database, settings, leases)
    if lost:
        log.warning("runs had lost their workers", run_ids=list(lost))
    wakeups.notify(queues)
    if settings.audit_retention_days is not None:
        with database.transaction() as session:
            removed = audit.prune(session, settings.audit_retention_days * 86_400)
        if removed:
            log.info("old entries of the audit log were removed", entries=removed)


def reconcile_once(
    database: Database, settings: Settings, leases: recovery.LeaseWatch
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the ids of the runs just requeued, and the queues whose workers are to be woken."""
    with database.transaction() as session:
        lost = recovery.requeue_expired(session, leases, MAX_ATTEMPTS, backoff_s=BACKOFF_S)
        # The message of the API may be lost. Wake-ups of queues without idle workers would pile up. One
        # per queue is enough: a worker that finds a run wakes the next worker.
        idle = workers.memory_limits(session, settings.seen_seconds, idle_only=True)
        queues = recovery.waiting_queues(session, idle)
        workers.forget(session, FORGET_WORKER_S)
        bundles.BUNDLES.prune(session)
        weights.WEIGHTS.prune(session)
    return lost, queues


@contextmanager
def _in_thread(name: str, step: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call `step` every second, in a thread, as long as the block lasts; the event ends it."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(PERIOD_S):
            try:
                step(ended)
            except UNAVAILABLE as error:
                log.warning("the database is away: %s", driver_error(error))
            except Exception:
                # It is still to be done, and tried again.
                log.exception("%s did not work", name)

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(THREAD_GRACE_S)


def _expiring(database: Database, storage: Storage, settings: Settings) -> AbstractContextManager[None]:
    """Remove old experiments in a thread, if they are to be removed."""
    if settings.retention_days is None:
        return nullcontext()
    # Here, because most services keep all, and it takes memory.
    from workers.retention import remove_expired

    archive = None if settings.archive is None else open_storage(settings.archive, "FEDQ_ARCHIVE_URL")
    return _in_thread(
        "retention", partial(remove_expired, database, storage, archive, settings.retention_days)
    )


def remove_due(database: Database, storage: Storage, ended: threading.Event) -> None:
    """Remove files that are due until there are none, or `ended`."""
    while not ended.is_set():
        with database.reading() as session:
            if not removals.any_due(session):
                return
        with database.transaction() as session:
            taken, began = removals.take(session, REMOVALS_AT_ONCE, REMOVAL_LEASE_S), time.monotonic()
        removed, failed = list[str](), dict[str, int]()
        for path, failures in taken:
            if ended.is_set() or time.monotonic() - began > REMOVAL_LEASE_S / 2:
                break
            try:
                _remove(storage, path)
                removed.append(path)
            except StorageError as error:
                failed[path] = failures
                log.warning("files stay for now", path=path, failures=failures + 1, error=str(error))
        with database.transaction() as session:
            removals.conclude(session, removed, failed)


def _remove(storage: Storage, path: str) -> None:
    if path.endswith("/"):
        storage.delete_prefix(path[:-1])
    else:
        storage.delete(path)


if __name__ == "__main__":
    main()
