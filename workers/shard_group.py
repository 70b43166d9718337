"""Training the shards of a run on several workers: the group of the worker that has claimed the run,
and membership in the group of another worker.

The worker that holds the run plays its rounds as ever. Only the training of a cohort and the scoring
of models are shared: their parts lie in a queue, and each participant takes the next one when it is
ready for it. A member has no state of the run that its leader lacks, so one that is lost costs the part
that it had, which another participant does again, to the same bits. Every wait for a member ends in
time, so that a group goes on as long as its leader does.

A member keeps the memory of the clients that it trained, and is sent that of others only. The leader
gets all of it back in each round.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedcore.engine.assignment import Job, Result
from fedcore.engine.engines import ENGINES
from fedcore.engine.shard_messages import (
    SCORES,
    ShardMessage,
    keeps_memory,
    message_of_scoring,
    message_of_shard,
    result_of_message,
)
from fedcore.engine.shards import one_by_one
from fedcore.errors import StaleLeaseError
from fedcore.platform.store import UNAVAILABLE, Database, groups
from fedcore.platform.store.groups import Membership
from fedcore.platform.store.leases import Claim
from fedcore.problems.supervised import Score, Scoring
from fedcore.simulation.shard_member import ShardMember
from fedcore.simulation.simulation import Simulation
from workers.peer import Peer, PeerLostError, admit, connect, listen

log = logging.getLogger(__name__)
T = TypeVar("T")

_RENEWALS_PER_LEASE = 3
SLOWEST = 10
"""A member may take this many times as long for a part as the others for the rest."""
SCORED_EACH = 2
"""Parts of an evaluation for each participant, so that they end at about the same time."""
ERROR = "error"
STRANGERS = 16
"""Maximum number of connections that are saying who they are, besides connections of members."""


@dataclass(frozen=True, slots=True)
class GroupPacing:
    """How long the participants of a group wait for one another, in seconds."""

    look_s: float = 1.0
    """Between two looks for new members, and for queued runs that come before a membership."""
    connect_s: float = 10.0
    silence_s: float = 10.0
    """A participant that shows no sign of life for this time is given up."""


@dataclass(frozen=True, slots=True)
class ConnectedMember:
    """A worker that has joined."""

    connection: str = field(repr=False)
    """The secret of its membership, by which it is known here."""
    worker: str
    peer: Peer


@dataclass(frozen=True, slots=True)
class RoundPart(Generic[T]):
    """A part of a round that any participant may do."""

    size: int
    """Samples or batches: the largest tasks are done first."""
    message: Callable[[str], ShardMessage]
    """Makes the message that asks the member of this connection for it."""
    result_of: Callable[[ShardMessage], T]
    """The result in a member's answer."""
    here: Callable[[], T]
    """Does it in this process."""
    kept: Counter[str] = field(default_factory=Counter)
    """Number of its clients whose memory each member keeps, by connection."""


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
        self._host, self._wake, self._pacing = host, wake, pacing
        self._seats = (simulation.spec.execution.shard_count or 1) - 1
        self._alone = one_by_one(ENGINES[simulation.context.choice.engine])
        self._listener: socket.socket | None = None
        self._members: dict[str, ConnectedMember] = {}
        """Members by their connections."""
        self._keepers: dict[int, str] = {}
        """The connection of the member that keeps a client's memory: it was the last to train this client."""
        self._seats_taken: dict[str, str] = {}
        """Workers that had a seat at the last look, by the secrets of their memberships."""
        self._admitted: dict[str, str] = {}
        """Workers that have come for their seats, by these secrets."""
        self._admitting = threading.Lock()
        self._admissions = threading.BoundedSemaphore(self._seats + STRANGERS)
        self._trained: dict[str, int] = {}
        """Shards of the last round, by worker."""
        self._announced, self._recorded = False, self._trained
        self._ended = threading.Event()
        # Threads log in the context of the run.
        arguments = (self._look,)
        self._thread = threading.Thread(target=copy_context().run, args=arguments, name="group", daemon=True)

    def open(self) -> None:
        """Look for members from now on. If this worker cannot be reached, it trains all shards itself."""
        try:
            self._listener = listen(self._host)
        except OSError as error:
            log.warning(
                "run %s trains its shards on one worker, which cannot listen on %s (FEDQ_GROUP_HOST): %s",
                self._claim.run_id,
                self._host,
                error,
            )
            return
        self._simulation.share(self._train, lambda statistics: partial(self._score, statistics))
        self._thread.start()

    def close(self) -> None:
        """Dismiss the members."""
        if self._listener is None:
            return
        self._simulation.share()
        self._ended.set()
        with suppress(OSError):  # Wakes the thread where it waits for members.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for member in list(self._members.values()):
            member.peer.close()
        with suppress(*UNAVAILABLE), self._database.transaction() as session:
            groups.close(session, self._claim)

    def _train(self, shards: Sequence[Job]) -> list[Result]:
        """Train the shards of one round on all workers of the group."""
        clients = [shard.work.clients.tolist() for shard in shards]
        # Taken out: what a member keeps changes as soon as it trains, even if the round fails.
        keepers = [{one: self._keepers.pop(one) for one in ids if one in self._keepers} for ids in clients]
        results, done = self._share(
            [
                RoundPart(
                    _samples(shard),
                    partial(self._shard_message, shard, kept),
                    partial(result_of_message, device=shard.work.local.x.device),
                    partial(self._train_here, shard),
                    Counter(kept.values()),
                )
                for shard, kept in zip(shards, keepers, strict=True)
            ]
        )
        self._trained = dict(Counter(member.worker if member else self._claim.worker for member in done))
        if keeps_memory(self._simulation.context.algorithm):
            for ids, member in zip(clients, done, strict=True):
                self._keepers |= dict.fromkeys(ids, member.connection) if member else {}
        return results

    def _shard_message(self, shard: Job, keepers: Mapping[int, str], connection: str) -> ShardMessage:
        kept = {client for client, keeper in keepers.items() if keeper == connection}
        parameters = self._simulation.state.server.adaptive_parameters
        return message_of_shard(shard, self._simulation.context.choice.engine, parameters, kept)

    def _train_here(self, shard: Job) -> Result:
        (result,) = self._alone([shard])
        return result

    def _score(self, statistics: Tensor | None, score: Score, theta: Tensor, scoring: Scoring) -> Tensor:
        """Score batches on all workers of the group."""
        parts = scoring.divided(SCORED_EACH * (1 + len(self._members)))
        if not self._members or len(parts) == 1:
            return score(theta, scoring)

        def message(part: Scoring, _: str) -> ShardMessage:
            return message_of_scoring(theta, part, statistics)

        scores, _ = self._share(
            [
                RoundPart(
                    part.stop - part.start,
                    partial(message, part),
                    lambda answer: answer.tensors[SCORES],
                    partial(score, theta, part),
                )
                for part in parts
            ]
        )
        return torch.cat(scores)

    def _share(self, tasks: Sequence[RoundPart[T]]) -> tuple[list[T], list[ConnectedMember | None]]:
        """Do tasks on all workers of the group; returns their results, and the member that has done each,
        None for this worker.
        """
        work = _SharedWork(tasks)
        results: dict[int, T] = {}
        with ThreadPoolExecutor(max(1, self._seats)) as pool:
            try:
                for member in list(self._members.values()):
                    pool.submit(copy_context().run, self._work_with, member, work)
                while len(results) < len(tasks):
                    number = work.next_task()
                    if number is not None:
                        results[number] = tasks[number].here()
                        continue
                    number, result = work.wait(self._pacing.silence_s)
                    if result is not None:
                        results[number] = result
            except BaseException:
                work.give_up()
                raise
        numbers = range(len(tasks))
        return [results[number] for number in numbers], [work.done.get(number) for number in numbers]

    def _work_with(self, member: ConnectedMember, work: _SharedWork[Any]) -> None:
        """Have one member do tasks until none is left; that of a member that is lost is put back."""
        while (number := work.next_task(member)) is not None:
            task = work.tasks[number]
            try:
                result = task.result_of(self._ask(member.peer, task.message(member.connection)))
            except Exception as error:
                log.info(
                    "worker %s has left the group of run %s: %s", member.worker, self._claim.run_id, error
                )
                self._members.pop(member.connection, None)
                member.peer.close()
                work.put_back(number)
                return
            work.complete(number, member, result)

    def _ask(self, peer: Peer, message: ShardMessage) -> ShardMessage:
        peer.send(message)
        answer = peer.receive()
        assert answer is not None
        if ERROR in answer.header:
            raise PeerLostError(answer.header[ERROR])
        return answer

    def _look(self) -> None:
        """Admit workers that have taken a seat, and wake others while there are seats."""
        # The next commit finds out that the lease is lost.
        with suppress(StaleLeaseError):
            while not self._ended.is_set():
                with suppress(*UNAVAILABLE):
                    self._note_places(self._publish())
                self._accept(time.monotonic() + self._pacing.look_s)

    def _publish(self) -> dict[str, str]:
        """Tell the database of the group and of its last round; returns the workers that have a seat."""
        if not self._announced:
            with self._database.transaction() as session:
                groups.announce(session, self._claim, self._address, self._seats)
            self._announced = True
        trained = self._trained
        if trained != self._recorded:
            with self._database.transaction() as session:
                groups.record_shards(session, self._claim, trained)
            self._recorded = trained
        with self._database.reading() as session:
            return groups.members(session, self._claim)

    def _note_places(self, taken: dict[str, str]) -> None:
        # One that has just left has other work.
        if len(taken) < self._seats and taken.keys() >= self._seats_taken.keys():
            self._wake()
        self._seats_taken = taken

    @property
    def _address(self) -> str:
        assert self._listener is not None
        return f"{self._host}:{self._listener.getsockname()[1]}"

    def _accept(self, until: float) -> None:
        """Have workers that connect before the monotonic time `until` say who they are."""
        assert self._listener is not None
        while (left_s := until - time.monotonic()) > 0 and not self._ended.is_set():
            self._listener.settimeout(left_s)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                return
            except OSError:
                self._ended.wait(left_s)
                return
            if not self._admissions.acquire(blocking=False):
                connection.close()
                continue
            arguments = self._admit, connection
            threading.Thread(target=copy_context().run, args=arguments, name="admission", daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        try:
            secret = admit(connection, self._seat, self._pacing.connect_s)
        except PeerLostError as error:
            log.debug("a connection was turned away: %s", error)
            return
        finally:
            self._admissions.release()
        worker, peer = self._admitted[secret], Peer(connection, self._pacing.silence_s)
        self._members[secret] = ConnectedMember(secret, worker, peer)
        log.info("worker %s has joined the group of run %s", worker, self._claim.run_id)
        if self._ended.is_set():
            peer.close()

    def _seat(self, proves: Callable[[str], bool]) -> str:
        """Secret of a free seat that a worker `proves` to know.

        Raises PeerLostError.
        """
        try:
            with self._database.reading() as session:
                taken = groups.members(session, self._claim)
        except UNAVAILABLE as error:
            raise PeerLostError(f"the database is away: {error}") from error
        with self._admitting:
            for secret in taken.keys() - self._admitted.keys():
                if proves(secret):
                    self._admitted[secret] = taken[secret]
                    return secret
        raise PeerLostError("it has no seat")


class _SharedWork(Generic[T]):
    """The tasks of one phase of a round, and the members that have some. Changes in place."""

    def __init__(self, tasks: Sequence[RoundPart[T]]) -> None:
        self.tasks, self._began = tasks, time.monotonic()
        self._left, self._lock = set(range(len(tasks))), threading.Lock()
        self._held: dict[int, Peer] = {}
        """The members that are at a task, by its number."""
        self.done: dict[int, ConnectedMember] = {}
        """The members that have done a task, by its number."""
        self._ready: SimpleQueue[tuple[int, T | None]] = SimpleQueue()

    def next_task(self, member: ConnectedMember | None = None) -> int | None:
        """The number of a task for a member, or for this process; None if none is left.

        It is the one of which it keeps the most memory, then the one of which others keep the
        least, then the largest, so that the tasks that end last are small.
        """

        def order(number: int) -> tuple[int, int, int, int]:
            kept, size = self.tasks[number].kept, self.tasks[number].size
            own = kept[member.connection] if member else 0
            return own, own - kept.total(), size, -number

        with self._lock:
            number = max(self._left, key=order, default=None)
            if number is not None:
                self._left.remove(number)
                if member is not None:
                    self._held[number] = member.peer
            return number

    def complete(self, number: int, member: ConnectedMember, result: T) -> None:
        """A member has done a task."""
        del self._held[number]
        self.done[number] = member
        self._ready.put((number, result))

    def put_back(self, number: int) -> None:
        """A member that had a task is lost."""
        del self._held[number]
        with self._lock:
            self._left.add(number)
        self._ready.put((number, None))

    def wait(self, silence_s: float) -> tuple[int, T | None]:
        """The next task that a member has done, or, without a result, that one is lost with.

        Members that show signs of life and take far longer than the others are given up, too.
        """
        while True:
            with suppress(Empty):
                return self._ready.get(timeout=silence_s + SLOWEST * (time.monotonic() - self._began))
            self._dismiss()

    def give_up(self) -> None:
        """Have no further task done, and dismiss the members that are at one."""
        with self._lock:
            self._left.clear()
        self._dismiss()

    def _dismiss(self) -> None:
        for peer in list(self._held.values()):
            peer.close()


def serve(
    database: Database,
    membership: Membership,
    load: Callable[[], ShardMember],
    lease_s: float,
    stopping: Callable[[], bool],
    pacing: GroupPacing,
) -> None:
    """Do parts of rounds of a run that another worker holds, until the group ends, a run is queued that this
    worker should claim instead, or it is `stopping`; then give the seat back.

    `load` makes its member here. Raises PeerLostError if the
    other worker cannot be reached, and what `load` raises.
    """
    renewal = Renewal(database, membership, lease_s, pacing.look_s)
    renewal.start()
    try:
        computing = load()
        connection = connect(membership.address, membership.connection, pacing.connect_s)
        peer = Peer(connection, pacing.silence_s)
        try:
            while not (renewal.over or stopping()):
                message = peer.receive(pacing.look_s)
                if message is not None:
                    began = time.monotonic()
                    answer = _answer(computing, message)
                    renewal.charge(time.monotonic() - began)
                    peer.send(answer)
        except PeerLostError as error:
            log.info("the group of run %s has ended: %s", membership.run.run_id, error)
        finally:
            peer.close()
    finally:
        renewal.stop()


def _answer(computing: ShardMember, message: ShardMessage) -> ShardMessage:
    try:
        return computing.answer(message)
    except Exception as error:
        log.exception("a part of a round failed here")
        return ShardMessage({ERROR: f"{type(error).__name__}: {error}"}, {})


class Renewal(threading.Thread):
    """Thread that renews a membership, until it should end."""

    def __init__(self, database: Database, membership: Membership, lease_s: float, look_s: float) -> None:
        super().__init__(name="membership", daemon=True)
        self._database, self._member, self._lease_s = database, membership, lease_s
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
        with suppress(*UNAVAILABLE), self._database.transaction() as session:
            groups.leave(session, self._member, self._seconds)

    def _renew(self) -> None:
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        try:
            with self._database.transaction() as session:
                self.over = not groups.renew(session, self._member, self._lease_s, seconds)
        except StaleLeaseError:
            self.over = True
            self.charge(seconds)
        except UNAVAILABLE:
            self.charge(seconds)


def host_name(database: Database) -> str:
    """Name under which the workers of a service reach this machine."""
    return "127.0.0.1" if database.url.get_backend_name() == "sqlite" else socket.gethostname()


def _samples(shard: Job) -> int:
    return sum(batch.size for batch in shard.work.batches)
