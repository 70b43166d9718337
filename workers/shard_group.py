"""Training the shards of a run on several workers: the group of the worker that has claimed the run,
and membership in the group of another worker.

The worker that holds the run plays its rounds as ever. Only the training of a cohort is shared:
shards lie in a queue, and each participant takes the next one when it is ready for it. A member has
no state of the run, so one that is lost costs the shard that it had, which another participant trains
again, to the same bits.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from fedcore.engine.assignment import Job, Result
from fedcore.engine.shard_messages import ShardMessage, result_of_message
from fedcore.errors import StaleLeaseError
from fedcore.platform.store import UNAVAILABLE, Database, groups
from fedcore.platform.store.groups import Membership
from fedcore.platform.store.leases import Claim
from fedcore.simulation.simulation import Simulation
from workers.peer import Peer, PeerLostError, lost

log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 3
ERROR = "error"


@dataclass(frozen=True, slots=True)
class GroupPacing:
    """How long the participants of a group wait for one another, in seconds."""

    look_s: float = 1.0
    """Between two looks for new members, and for queued runs that come before a membership."""
    connect_s: float = 30.0
    silence_s: float = 10.0
    """A participant that shows no sign of life for this time is given up."""


class ShardGroup:
    """The group of a claimed run: its worker, and the members that have joined so far."""

    def __init__(
        self,
        database: Database,
        claim: Claim,
        simulation: Simulation,
        host: str,
        wake: Callable[[], None],
        pacing: GroupPacing,
    ) -> None:
        """Members reach this worker as `host`; `wake` wakes an idle one."""
        self._database, self._claim, self._simulation = database, claim, simulation
        self._wake, self._pacing, self._alone = wake, pacing, simulation.train_shards
        self._seats = (simulation.spec.execution.shard_count or 1) - 1
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._address = f"{host}:{self._store.port}"
        self._peers: dict[str, Peer] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="group", daemon=True)

    def start(self) -> None:
        """Look for members from now on."""
        with self._database.transaction() as session:
            groups.announce(session, self._claim, self._address, self._seats)
        self._simulation.train_shards = self._train
        self._thread.start()

    def close(self) -> None:
        """Dismiss the members."""
        self._simulation.train_shards = self._alone
        self._ended.set()
        self._thread.join()
        for peer in list(self._peers.values()):
            peer.close()
        with suppress(*UNAVAILABLE), self._database.transaction() as session:
            groups.close(session, self._claim)

    def _train(self, shards: Sequence[Job]) -> list[Result]:
        """Train the shards of one round on all workers of the group."""
        left: SimpleQueue[int] = SimpleQueue()
        ready: SimpleQueue[tuple[int, Result | None]] = SimpleQueue()
        # The largest first, so that those that end last are small.
        for number in sorted(range(len(shards)), key=lambda number: -_samples(shards[number])):
            left.put(number)
        results: dict[int, Result] = {}
        with ThreadPoolExecutor(max(1, self._seats)) as pool:
            try:
                for worker, peer in list(self._peers.items()):
                    pool.submit(self._train_with, worker, peer, shards, left, ready)
                while len(results) < len(shards):
                    try:
                        number = left.get_nowait()
                    except Empty:
                        number, result = ready.get()
                        if result is not None:
                            results[number] = result
                    else:
                        (results[number],) = self._alone([shards[number]])
            except BaseException:
                _empty(left)
                raise
        return [results[number] for number in range(len(shards))]

    def _train_with(
        self,
        worker: str,
        peer: Peer,
        shards: Sequence[Job],
        left: SimpleQueue[int],
        ready: SimpleQueue[tuple[int, Result | None]],
    ) -> None:
        """Have one member train shards until none is left; that of a member that is lost is put back."""
        with suppress(Empty):
            while True:
                number = left.get_nowait()
                try:
                    answer = self._ask(peer, self._simulation.shard_message(shards[number]))
                    result = result_of_message(answer, shards[number].work.local.x.device)
                except Exception as error:
                    log.info("worker %s has left the group of run %s: %s", worker, self._claim.run_id, error)
                    del self._peers[worker]
                    peer.close()
                    left.put(number)
                    ready.put((number, None))
                    return
                ready.put((number, result))

    def _ask(self, peer: Peer, message: ShardMessage) -> ShardMessage:
        peer.send(message)
        answer = peer.receive()
        assert answer is not None
        if ERROR in answer.header:
            raise PeerLostError(answer.header[ERROR])
        return answer

    def _look(self) -> None:
        """Admit workers that have taken a seat, and wake others while there are seats."""
        seated: set[str] = set()
        while not self._ended.wait(self._pacing.look_s):
            try:
                with self._database.reading() as session:
                    found = set(groups.members(session, self._claim))
            except UNAVAILABLE:
                continue
            for worker in found - seated:
                threading.Thread(target=self._admit, args=[worker], name="admission", daemon=True).start()
            if len(found) < self._seats and found >= seated:
                self._wake()
            seated = found

    def _admit(self, worker: str) -> None:
        pacing = self._pacing
        try:
            peer = Peer(PrefixStore(worker, self._store), 0, pacing.connect_s, pacing.silence_s)
        except PeerLostError as error:
            log.warning("worker %s did not come: %s", worker, error)
            return
        if self._ended.is_set():
            peer.close()
        self._peers[worker] = peer
        log.info("worker %s has joined the group of run %s", worker, self._claim.run_id)


def serve(
    database: Database,
    member: Membership,
    simulation: Simulation,
    lease_s: float,
    stopping: Callable[[], bool],
    pacing: GroupPacing,
) -> None:
    """Train shards of a run that another worker holds, until the group ends, a run is queued that this
    worker should claim instead, or it is `stopping`.

    `simulation` is a run like that one; it stays before its first round. Raises PeerLostError if the
    other worker cannot be reached.
    """
    host, _, port = member.address.rpartition(":")
    try:
        store = TCPStore(
            host,
            int(port),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=pacing.connect_s),
        )
    except RuntimeError as error:
        raise lost(error) from error
    peer = Peer(PrefixStore(member.worker, store), 1, pacing.connect_s, pacing.silence_s)
    renewal = Renewal(database, member, lease_s, pacing.look_s)
    renewal.start()
    try:
        while not (renewal.over or stopping()):
            message = peer.receive(pacing.look_s)
            if message is not None:
                began = time.monotonic()
                answer = _answer(simulation, message)
                renewal.charge(time.monotonic() - began)
                peer.send(answer)
    except PeerLostError as error:
        log.info("the group of run %s has ended: %s", member.run.run_id, error)
    finally:
        peer.close()
        renewal.stop()


def _answer(simulation: Simulation, message: ShardMessage) -> ShardMessage:
    try:
        return simulation.train_shard(message)
    except Exception as error:
        log.exception("a shard failed here")
        return ShardMessage({ERROR: f"{type(error).__name__}: {error}"}, {})


class Renewal(threading.Thread):
    """Thread that renews a membership, until it should end."""

    def __init__(self, database: Database, member: Membership, lease_s: float, look_s: float) -> None:
        super().__init__(name="membership", daemon=True)
        self._database, self._member, self._lease_s = database, member, lease_s
        self._every_s = min(look_s, lease_s / _RENEWALS_PER_LEASE)
        self._stopped, self._lock, self._seconds = threading.Event(), threading.Lock(), 0.0
        self.over = False
        """The member should leave."""

    def charge(self, seconds: float) -> None:
        """Add seconds of training."""
        with self._lock:
            self._seconds += seconds

    def run(self) -> None:
        """Renew the membership while it lasts."""
        while not (self.over or self._stopped.wait(self._every_s)):
            self._renew()

    def stop(self) -> None:
        """End the membership."""
        self._stopped.set()
        self.join()
        self._renew()
        with suppress(*UNAVAILABLE), self._database.transaction() as session:
            groups.leave(session, self._member.run.run_id, self._member.worker)

    def _renew(self) -> None:
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        try:
            with self._database.transaction() as session:
                self.over = not groups.renew(session, self._member, self._lease_s, seconds)
        except StaleLeaseError:
            self.over = True
        except UNAVAILABLE:
            self.charge(seconds)


def host_name(database: Database) -> str:
    """Name under which the workers of a service reach this machine."""
    return "127.0.0.1" if database.url.get_backend_name() == "sqlite" else socket.gethostname()


def _samples(shard: Job) -> int:
    return sum(batch.size for batch in shard.work.batches)


def _empty(queue: SimpleQueue[int]) -> None:
    with suppress(Empty):
        while True:
            queue.get_nowait()
