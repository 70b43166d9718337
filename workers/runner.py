"""The task: carry out what waits, run after run.

Every write names its claim. A worker that lost it, by a crash, a freeze or a slow disk, is refused
and stops; whoever claims the run next goes on from the last commit, and plays the rounds that this
one would have played: to the bit, or where a library sums a larger stack in another order, to
rounding.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from structlog.contextvars import bound_contextvars

from fedcore.platform.storage import open_storage
from fedcore.platform.store import UNAVAILABLE, open_database, runs
from fedcore.platform.store.claim import Claim
from fedcore.platform.tracing import continued, flush
from fedcore.platform.uploads.dataset_storage import SharedDatasetStorage
from fedcore.platform.wakeups import WakeupNotifier
from fedcore.settings import Settings
from workers.celery_app import MAX_TASK_SECONDS, send_wakeup
from workers.claimed_run import ClaimedRun, Resources
from workers.heartbeat import Heartbeat, Identity
from workers.memory import memory_limit
from workers.oom_recovery import HeldRuns
from workers.session import WorkSession
from workers.simulation_cache import SimulationCache
from workers.warmup import WarmUp

log = logging.getLogger(__name__)


def build_runner(configured: Settings, worker_id: str, stopping: Callable[[], bool]) -> "Runner":
    """The runner of this process, its heartbeat beating.

    `stopping` says that it has been asked to end.
    """
    torch.set_num_threads(configured.torch_threads)
    device = configured.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.empty((), device=device)  # raises now, not in every run, where there is no such device
    # A worker that is silent in a transaction for as long as its lease, its machine gone perhaps,
    # has lost its runs: they are set free.
    database = open_database(configured.database, idle_s=configured.lease_seconds)
    identity = Identity(
        worker_id,
        socket.gethostname(),
        os.getpid(),
        configured.queues,
        device,
        memory_limit(device, configured.memory_bytes),
    )
    storage = open_storage(configured.storage)
    simulations = SimulationCache(device, configured.data_dir.expanduser(), SharedDatasetStorage(storage))
    resources = Resources(configured, database, storage, simulations, device, stopping)
    held_runs = HeldRuns(configured.home, worker_id)
    return Runner(resources, Heartbeat(database, identity, configured.lease_seconds, held_runs))


class Runner:
    """Carries out the runs that wait in a worker's queues, one gang at a time."""

    def __init__(self, resources: Resources, heartbeat: Heartbeat) -> None:
        self._resources, self._heartbeat = resources, heartbeat
        self._warm_up = WarmUp(resources.device, resources.settings.data_dir.expanduser())
        self._wakeups = WakeupNotifier(partial(send_wakeup, broker=resources.settings.broker))
        heartbeat.start()
        self._warm_up.start()

    def close(self) -> None:
        """Take the worker off the list of those that are there, and close its connections."""
        self._warm_up.stop()
        self._heartbeat.stop()
        self._wakeups.close()
        self._resources.database.close()
        flush()

    def work(self) -> None:
        """Turn after turn, until nothing waits or the stint is over."""
        identity, began = self._heartbeat.identity, time.monotonic()
        while not self._resources.stopping():
            looked_ns = time.time_ns()
            claim = self._claim()
            if claim is None:
                return
            self._warm_up.stop()
            # Where one run waits there are often more, so each worker that finds one calls the
            # next.
            self._wakeups.notify(identity.queues)
            names: dict[str, Any] = {
                "run_id": claim.run_id,
                "experiment_id": claim.experiment_id,
                "fence": claim.fence,
            }
            with (
                bound_contextvars(**names),
                continued(claim.traceparent, "turn", began_ns=looked_ns, **names),
            ):
                self._take(claim)
            if time.monotonic() - began > MAX_TASK_SECONDS:
                return

    def _claim(self) -> Claim | None:
        identity = self._heartbeat.identity
        try:
            with self._resources.database.transaction() as session:
                return runs.claim(
                    session,
                    identity.id,
                    identity.queues,
                    self._resources.settings.lease_seconds,
                    identity.memory_bytes,
                )
        except UNAVAILABLE as error:
            log.warning("the database is away, the reconciler will call again: %s", error)
            return None

    def _take(self, claim: Claim) -> None:
        """A turn with a run, and with others of its experiment where they are faster together."""
        simulations = self._resources.simulations
        simulations.start(claim)
        members = [self._member(claim)]
        try:
            if not (members[0].released or claim.shortages) and members[0].simulation.gang_pays:
                members += map(self._member, self._batch_claims(claim))
            simulations.retain([member.lease.claim for member in members])
            WorkSession(self._resources, [member for member in members if not member.released]).run()
        finally:
            for member in members:
                self._heartbeat.release(member.lease)

    def _member(self, claim: Claim) -> ClaimedRun:
        """The claimed run, its lease kept and its simulation loaded.

        If that goes wrong, it has left.
        """
        member = ClaimedRun(self._resources, self._heartbeat.hold(claim))
        with member.handling_errors():
            log.info("run claimed, %d of %d rounds are done", claim.done, claim.rounds)
            member.load()
        return member

    def _batch_claims(self, claim: Claim) -> list[Claim]:
        configured = self._resources.settings
        lease_s, arms = configured.lease_seconds, self._resources.simulations.compatible_arms(claim)
        try:
            with self._resources.database.transaction() as session:
                return runs.claim_batch(
                    session,
                    claim,
                    arms,
                    configured.gang_size - 1,
                    lease_s=lease_s,
                    seen_s=configured.seen_seconds,
                )
        except UNAVAILABLE as error:
            log.warning("run %s goes alone, the database is away: %s", claim.run_id, error)
            return []
