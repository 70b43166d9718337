"""The heartbeat: a thread that keeps the leases of the runs at hand, and says that the worker is
there.
"""

import logging
import threading
from dataclasses import dataclass
from typing import Any

from fedcore.errors import StaleLeaseError
from fedcore.platform.store import UNAVAILABLE, Database, WorkerDirective, runs, workers
from fedcore.platform.store.claim import Claim
from workers.oom_recovery import HeldRuns

_BEATS_PER_LEASE = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """A worker process, as others see it."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    device: str
    memory_bytes: int
    """Bytes of memory that a run on it may need."""


class HeldLease:
    """State of a claim, as the heartbeat last saw it.

    The loop that executes rounds checks it between two of them.
    """

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        """As of the last commit."""
        self.lost = False
        """The run is no longer this worker's."""
        self.interrupted = False
        """The slice should end: the run is lost, or the user wants something of it."""


class Heartbeat:
    """Renews the leases every third of them, in a thread and with connections of its own."""

    def __init__(self, database: Database, identity: Identity, lease_s: float, held_runs: HeldRuns) -> None:
        self.identity = identity
        self._database, self._lease_s, self._held_runs = database, lease_s, held_runs
        # Replaced, never changed, so that the thread may look at any moment.
        self._held: tuple[HeldLease, ...] = ()
        self._noting = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more, and take the worker off the list of those that are there."""
        self._ended.set()
        self._thread.join()
        self._held_runs.close()
        try:
            with self._database.transaction() as session:
                workers.gone(session, self.identity.id)
        except UNAVAILABLE as error:
            log.warning("still listed as a worker, the database is away: %s", error)

    def hold(self, claim: Claim) -> HeldLease:
        """Keep the lease of `claim` until it is released."""
        lease = HeldLease(claim)
        self._held = (*self._held, lease)
        self._note()
        return lease

    def release(self, lease: HeldLease) -> None:
        """Keep it no longer."""
        self._held = tuple(held for held in self._held if held is not lease)
        self._note()

    def _note(self) -> None:
        with self._noting:
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
            self._note()
        except UNAVAILABLE as error:
            # The leases may run out meanwhile. If so, the next commits find out.
            log.warning("no heartbeat, the database is away: %s", error)
        except Exception:
            # Whatever it is: a worker that went on without its heart would lose every run that it
            # takes.
            log.exception("no heartbeat")

    def _renew(self, held: HeldLease) -> None:
        try:
            with self._database.transaction() as session:
                control = runs.renew(session, held.claim, self._lease_s)
        except StaleLeaseError:
            held.lost = held.interrupted = True
        else:
            held.interrupted = control is not WorkerDirective.CONTINUE

    def _report(self, held: tuple[HeldLease, ...]) -> None:
        worker = self.identity
        run_id = held[0].claim.run_id if held else None
        present: dict[str, Any] = {
            "host": worker.host,
            "pid": worker.pid,
            "queues": worker.queues,
            "device": worker.device,
            "memory_bytes": worker.memory_bytes,
        }
        with self._database.transaction() as session:
            workers.seen(session, worker.id, run_id=run_id, **present)
