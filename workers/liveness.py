"""Liveness of a worker: the threads that prove it and watch it.

| thread | process | what it does |
| --- | --- | --- |
| `Heartbeat` | child | renews the leases of its runs, stores their telemetry, reports the worker |
| `ChildWatchdog.attach` | child | counts in shared memory as long as the process is not stopped |
| `ChildWatchdog.start` | parent | kills a child that no longer counts |
| `WakeupMonitor` | child | sends the worker a message while it is idle; ends it if none arrives |
"""

import logging
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from fedcore.errors import StaleLeaseError
from fedcore.platform.store import UNAVAILABLE, Database, WorkerDirective, runs, telemetry, workers
from fedcore.platform.store.leases import Claim
from fedq.planning.data import roots_in
from workers.memory import HeldRuns
from workers.telemetry import RunTelemetry, TelemetryCollector

log = logging.getLogger(__name__)

_BEATS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A worker process, as it is listed."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    device: str
    memory_bytes: int
    """Memory that a run on it may take."""
    packages: tuple[str, ...] = ()
    """The installed packages with components, as "name version"."""
    data_dir: Path | None = None
    """Folder of its data sets."""


class HeldLease:
    """State of a claim, as the heartbeat last saw it.

    The loop that executes rounds checks it between two of them.
    """

    def __init__(self, claim: Claim, telemetry: RunTelemetry) -> None:
        self.claim = claim
        """The claim as of the last commit."""
        self.telemetry = telemetry
        self.lost = False
        """Another process has taken the run."""
        self.interrupted = False
        """The slice should end: the lease is lost, or a user asks for a pause or a cancellation."""


class Heartbeat:
    """Thread that renews the leases three times per lease, with connections of its own, stores the
    telemetry of the runs, and reports the worker as present.
    """

    def __init__(
        self,
        database: Database,
        identity: WorkerIdentity,
        lease_s: float,
        held_runs: HeldRuns,
        collector: TelemetryCollector,
    ) -> None:
        self.identity = identity
        self._database, self._lease_s, self._held_runs = database, lease_s, held_runs
        self._collector = collector
        # Replaced, never changed: the thread may read it at any moment.
        self._held: tuple[HeldLease, ...] = ()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and remove the worker from the list of workers."""
        self._ended.set()
        self._thread.join()
        self._collector.close()
        self._held_runs.close()
        try:
            with self._database.transaction() as session:
                workers.gone(session, self.identity.id)
        except UNAVAILABLE as error:
            log.warning("still listed as a worker, the database is away: %s", error)

    def hold(self, claim: Claim) -> HeldLease:
        """Renew the lease of `claim` until it is released."""
        lease = HeldLease(claim, self._collector.start(claim))
        self._held = (*self._held, lease)
        self._write_held_runs()
        return lease

    def release(self, lease: HeldLease) -> None:
        """Renew this lease no more."""
        self._held = tuple(held for held in self._held if held is not lease)
        self._collector.end(lease.claim)
        self._write_held_runs()

    def _write_held_runs(self) -> None:
        with self._writing:
            self._held_runs.write([lease.claim.run_id for lease in self._held if not lease.lost])

    def _run(self) -> None:
        self._beat()
        while not self._ended.wait(self._lease_s / _BEATS_PER_LEASE):
            self._beat()

    def _beat(self) -> None:
        held = self._held
        try:
            for lease in held:
                self._renew(lease)
            self._report(held)
            self._write_held_runs()
        except UNAVAILABLE as error:
            # The leases may run out meanwhile. If so, the next commits find out.
            log.warning("no heartbeat, the database is away: %s", error)
        except Exception:
            # Whatever it is: a worker that went on without its heart would lose every run that it
            # takes.
            log.exception("no heartbeat")

    def _renew(self, held: HeldLease) -> None:
        held.telemetry.measure()
        try:
            with held.telemetry.unstored() as unstored, self._database.transaction() as session:
                control = runs.renew(session, held.claim, self._lease_s)
                telemetry.append(session, held.claim.lease, *unstored)
        except StaleLeaseError:
            held.lost = held.interrupted = True
        else:
            held.interrupted = control is not WorkerDirective.CONTINUE

    def _report(self, held: tuple[HeldLease, ...]) -> None:
        worker = self.identity
        with self._database.transaction() as session:
            workers.seen(
                session,
                worker.id,
                run_id=held[0].claim.run_id if held else None,
                host=worker.host,
                pid=worker.pid,
                queues=worker.queues,
                device=worker.device,
                memory_bytes=worker.memory_bytes,
                packages=worker.packages,
                datasets=None if worker.data_dir is None else roots_in(worker.data_dir),
            )


_LOOKS = 10
_PID, _BEATS, _USELESS = 0, 1, 2


class ChildWatchdog:
    """A counter that a thread of the child increments and one of the parent watches; created before
    the fork. The two share memory, and no lock.

    A process that stops within a transaction keeps its locks: on SQLite no other process can write until
    it continues or dies, on PostgreSQL its run cannot be taken from it. By then its lease has
    expired, so nothing is lost with it. A child may also ask the parent to end with it.
    """

    def __init__(self, patience_s: float) -> None:
        """Kill a child that has not counted for `patience_s` seconds."""
        self._pause_s = patience_s / _LOOKS
        self._shared = memoryview(mmap.mmap(-1, 24)).cast("q")
        self._ended = threading.Event()

    def attach(self) -> None:
        """Begin to count, in the child."""
        self._shared[_PID] = os.getpid()
        threading.Thread(target=self._count, name="pulse", daemon=True).start()

    def abort(self) -> None:
        """Have the parent end, with this child, so that another worker is started in its place."""
        self._shared[_USELESS] = 1

    def detach(self) -> None:
        """Stop counting, in the child; it is watched no more."""
        self._shared[_PID] = 0
        self._ended.set()

    def start(self) -> None:
        """Begin to watch, in the parent, whichever child is attached."""
        threading.Thread(target=self._poll, name="watch", daemon=True).start()

    def kill(self) -> None:
        """Kill the child, in the parent."""
        if _is_ours(self._shared[_PID]):
            with suppress(ProcessLookupError):
                os.kill(self._shared[_PID], signal.SIGKILL)

    def _count(self) -> None:
        while not self._ended.wait(self._pause_s / 2):
            self._shared[_BEATS] += 1

    def _poll(self) -> None:
        # Looks are counted, not seconds: a parent that was still together with its child has
        # nothing to say.
        seen, still = (0, 0), 0
        while not self._ended.wait(self._pause_s):
            if self._shared[_USELESS]:
                self.kill()
                # Even where this is process 1 of a container, which no signal of its own ends.
                os._exit(1)
            now = self._shared[_PID], self._shared[_BEATS]
            seen, still = now, still + 1 if now == seen else 0
            if still == _LOOKS and _is_ours(now[_PID]):
                log.error(
                    "process %d has stopped and is killed; its runs are left to their leases", now[_PID]
                )
                self.kill()


def _is_ours(pid: int) -> bool:
    """True if `pid` is the child, in our process group.

    Once it is dead, and before another has begun in its place, the number may be another process's.
    """
    try:
        return pid != 0 and os.getpgid(pid) == os.getpgid(0)
    except ProcessLookupError:
        return False


PERIOD_S = 10.0
"""Seconds between two messages."""
MOST_UNANSWERED = 6
"""Unanswered messages after which a worker ends: Celery may wait 30 s before it connects to its
broker again.
"""


class WakeupMonitor:
    """Thread that checks, while its worker is idle, that messages reach it. Create it after a fork.

    A consumer that lost its broker for a while may stop receiving without an error. Each worker has
    a queue of its own for these messages, since one in a shared queue may go to any worker. A
    message that arrives also makes the worker look for runs, so one whose wake-up was lost does not
    wait for the reconciler.
    """

    def __init__(self, send: Callable[[], bool], on_unreachable: Callable[[], None]) -> None:
        """Start nothing yet.

        `send` returns whether the broker took a message to this worker; `on_unreachable` ends the
        worker.
        """
        self._send, self._on_unreachable = send, on_unreachable
        self._unanswered, self._busy = 0, False
        self._ended = Event()
        self._thread = Thread(target=self._run, name="wake-up monitor", daemon=True)

    def start(self) -> None:
        """Begin to check."""
        self._thread.start()

    def stop(self) -> None:
        """Check no more."""
        self._ended.set()

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Suspend the check while the worker handles a message that has arrived."""
        self._busy = True
        try:
            yield
        finally:
            self._unanswered, self._busy = 0, False

    def check(self) -> None:
        """Send a message, or end the worker when the last ones did not arrive.

        Called every PERIOD_S.
        """
        if self._busy:
            return
        if self._unanswered == MOST_UNANSWERED:
            self._on_unreachable()
        elif self._send():
            self._unanswered += 1

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            try:
                self.check()
            except Exception:
                log.exception("the check of whether messages arrive failed")
