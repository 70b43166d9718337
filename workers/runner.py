"""The task of a worker: claim queued runs and execute them, one after another.

Every write names its claim. A worker that lost it, by a crash, a freeze or a slow disk, is refused
and stops; the next worker that claims the run continues from the last commit with the rounds that this one
would have executed: to the bit, or where a library sums a larger stack in another order, to
rounding. An idle worker warms up (`WarmUp`).
"""

import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from structlog.contextvars import bound_contextvars

from fedcore import ExperimentSpec, presets
from fedcore.data.plan import compile_shuffling
from fedcore.engine.process_tuning import release_freed_memory
from fedcore.errors import DataUnavailableError, SettingsError, SpecificationError
from fedcore.packages import file_digest, installed_packages
from fedcore.platform.storage import open_storage
from fedcore.platform.store import UNAVAILABLE, Database, groups, open_database, runs
from fedcore.platform.store.leases import Claim, Claimant, Lease
from fedcore.platform.tracing import continue_trace, flush
from fedcore.platform.uploads.dataset_storage import SharedDatasetStorage
from fedcore.platform.version import find_commit
from fedcore.platform.wakeups import WakeupNotifier
from fedcore.settings import Settings
from fedcore.simulation.simulation import Simulation
from workers.celery_app import MAX_TASK_SECONDS, send_wakeup
from workers.claimed_run import ClaimedRun, Pacing, Resources
from workers.confined.runs import ConfinedRuns
from workers.liveness import Heartbeat, WorkerIdentity
from workers.memory import HeldRuns, memory_limit
from workers.peer import PeerLostError
from workers.session import play
from workers.shard_group import ShardGroup, host_name, serve
from workers.simulations import SimulationCache
from workers.telemetry import ResourceMeter, TelemetryCollector
from workers.weights import UploadedWeights

IDLE_S = 2.0
"""Idle time before the warm-up, for a worker that starts because there is work has it by then; and
before freed memory is returned, which the next run would use.
"""

DECLINED_S = 60.0
"""Seconds before a worker tries again to join a group that it could not join."""

log = logging.getLogger(__name__)


def build_runner(
    settings: Settings,
    worker_id: str,
    stopping: Callable[[], bool],
    *,
    database: Database | None = None,
    create: Callable[..., Simulation] = Simulation,
    pacing: Pacing | None = None,
) -> "Runner":
    """Build the runner of this process and start its heartbeat.

    `stopping` is true once the worker has been asked to end. `database` is by default the one of
    the settings; the runner closes it. Raises SettingsError if the device cannot be used.
    """
    # Processes share the cores; threads would compete for them.
    torch.set_num_threads(1)
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty((), device=device)  # raises now, not in every run, where there is no such device
    except (AssertionError, RuntimeError) as error:  # Of a build of PyTorch without it; of the driver.
        reason = str(error).partition("\n")[0].rstrip(".")
        raise SettingsError(f"FEDQ_DEVICE: {device} cannot be used: {reason}") from error
    # A worker that is silent in a transaction for as long as its lease, its machine gone perhaps,
    # has lost its runs: their rows are unlocked.
    database = database or open_database(settings.database, idle_s=settings.lease_seconds)
    packages = installed_packages()
    for package in packages:
        file_digest(package.name)  # Of the files as they are loaded: they may be edited later.
    identity = WorkerIdentity(
        worker_id,
        socket.gethostname(),
        os.getpid(),
        settings.queues,
        device,
        memory_limit(device, settings.memory_bytes),
        tuple(map(str, packages)),
        settings.datasets,
    )
    storage = open_storage(settings.storage)
    weights = UploadedWeights(database, storage)
    simulations = SimulationCache(
        device,
        SharedDatasetStorage(storage),
        weights,
        ConfinedRuns(settings, device, storage, weights),
        partial(create, data_dir=settings.datasets, models_allowed=settings.models_allowed),
    )
    resources = Resources(settings, database, storage, simulations, device, stopping, pacing or Pacing())
    held_runs, collector = HeldRuns(settings.home, worker_id), TelemetryCollector(ResourceMeter(device))
    return Runner(resources, Heartbeat(database, identity, settings.lease_seconds, held_runs, collector))


class Runner:
    """Executes the runs queued in a worker's queues, one batch at a time."""

    def __init__(self, resources: Resources, heartbeat: Heartbeat) -> None:
        self._resources, self._heartbeat = resources, heartbeat
        self._warm_up = WarmUp(resources.device)
        self._wakeups = WakeupNotifier(partial(send_wakeup, broker=resources.settings.broker))
        self._rest: threading.Timer | None = None
        identity, device = heartbeat.identity, torch.device(resources.device).type
        self._claimant = Claimant(
            identity.id, identity.queues, identity.memory_bytes, identity.packages, device
        )
        """This worker, with the queue first from which it has taken nothing for longest."""
        self._declined: dict[Lease, float] = {}
        """Claims of other workers whose groups this one could not join, and until when, by the monotonic
        clock, it does not try again.
        """
        heartbeat.start()
        self._warm_up.start()

    def close(self) -> None:
        """Remove the worker from the list of workers, and close its connections."""
        self._warm_up.stop()
        self._stay_awake()
        self._heartbeat.stop()
        self._resources.simulations.close()
        self._wakeups.close()
        self._resources.database.close()
        flush()

    def work(self) -> None:
        """Execute runs until none is queued or the task has lasted long enough.

        The memory that they have freed is returned once the worker has been idle for a while.
        """
        began = time.monotonic()
        while not self._resources.stopping():
            claiming_ns = time.time_ns()
            claim = self._claim()
            if claim is None:
                if self._help():
                    continue
                return
            self._took_from(claim.spec["execution"]["queue"])
            # Where one run is queued there are often more, so each worker that finds one wakes the
            # next.
            self._wakeups.notify(self._claimant.queues)
            names: dict[str, Any] = {
                "run_id": claim.run_id,
                "experiment_id": claim.experiment_id,
                "fence": claim.fence,
            }
            with (
                bound_contextvars(**names),
                continue_trace(claim.traceparent, "turn", began_ns=claiming_ns, **names),
            ):
                self._execute(claim)
            self._rest = threading.Timer(IDLE_S, _rest)
            self._rest.daemon = True
            self._rest.start()
            if time.monotonic() - began > MAX_TASK_SECONDS:
                return

    def _took_from(self, queue: str) -> None:
        """Get ready for a run, and look at this queue last the next time."""
        others = (other for other in self._claimant.queues if other != queue)
        self._claimant = replace(self._claimant, queues=(*others, queue))
        self._warm_up.stop()
        self._stay_awake()

    def _stay_awake(self) -> None:
        if self._rest is not None:
            self._rest.cancel()

    def _claim(self) -> Claim | None:
        try:
            with self._resources.database.transaction() as session:
                return runs.claim(session, self._claimant, self._resources.settings.lease_seconds)
        except UNAVAILABLE as error:
            log.warning("the database is away, the reconciler will wake a worker again: %s", error)
            return None

    def _execute(self, claim: Claim) -> None:
        """Run a session with a run, and with others of its experiment where they are faster together."""
        simulations = self._resources.simulations
        simulations.start(claim)
        members = [self._load(claim)]
        try:
            if not (members[0].released or claim.shortages) and members[0].simulation.benefits_from_batching:
                members += map(self._load, self._batch_claims(claim))
            simulations.retain([member.lease.claim for member in members])
            held = [member for member in members if not member.released]
            with self._group(held):
                play(self._resources, held)
        finally:
            simulations.end_session()
            for member in members:
                self._heartbeat.release(member.lease)

    @contextmanager
    def _group(self, held: Sequence[ClaimedRun]) -> Iterator[None]:
        """Share the training of a run that has shards with idle workers."""
        simulation = held[0].simulation if len(held) == 1 else None
        shards = simulation.spec.execution.shard_count if isinstance(simulation, Simulation) else None
        if shards is None or shards == 1:
            yield
            return
        assert isinstance(simulation, Simulation)
        configured, claim, database = self._resources.settings, held[0].lease.claim, self._resources.database
        group = ShardGroup(
            database,
            claim,
            simulation,
            configured.group_host or host_name(database),
            partial(self._wakeups.notify, [simulation.spec.execution.queue]),
            self._resources.pacing.group,
        )
        group.open()
        try:
            yield
        finally:
            group.close()

    def _help(self) -> bool:
        """Train shards of a run that another worker holds; False if none looks for workers."""
        resources, now = self._resources, time.monotonic()
        lease_s = resources.settings.lease_seconds
        self._declined = {lease: until for lease, until in self._declined.items() if until > now}
        try:
            with resources.database.transaction() as session:
                member = groups.join(session, self._claimant, lease_s, self._declined.keys())
        except UNAVAILABLE as error:
            log.warning("no group is joined, the database is away: %s", error)
            return False
        if member is None:
            return False
        self._took_from(member.place.queue)
        load = partial(resources.simulations.member_of, member.run)
        with bound_contextvars(run_id=member.run.run_id, experiment_id=member.run.experiment_id):
            try:
                serve(resources.database, member, load, lease_s, resources.stopping, resources.pacing.group)
            except (DataUnavailableError, SpecificationError, PeerLostError) as error:
                log.warning("no part in the group of a run: %s", error)
            except Exception:
                log.exception("no part in the group of a run")
            else:
                return True
        # It would fail again; other groups may be open.
        self._declined[member.run.lease] = time.monotonic() + DECLINED_S
        return True

    def _load(self, claim: Claim) -> ClaimedRun:
        """Load a claimed run, its lease kept; if that fails, it is released."""
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
                    self._resources.pacing.batch_runs - 1,
                    lease_s=lease_s,
                    seen_s=configured.seen_seconds,
                )
        except UNAVAILABLE as error:
            log.warning("run %s goes alone, the database is away: %s", claim.run_id, error)
            return []


def _rest() -> None:
    gc.collect()
    release_freed_memory()


class WarmUp(threading.Thread):
    """Thread that loads the libraries and compiles the machine code that most runs need, by
    executing a round of the demonstration; it would take a run some two seconds.

    A first run is not kept waiting. The warm-up begins when a worker has been idle for a while,
    goes in steps, and ends after the current step, most of whose work the run would have to do
    itself.
    """

    def __init__(
        self,
        device: str,
        idle_s: float = IDLE_S,
        create: Callable[..., Simulation] = Simulation,
    ) -> None:
        """Compute on the worker's own device; no data are read."""
        super().__init__(name="warm-up", daemon=True)
        self._device, self._idle_s, self._create = device, idle_s, create
        self._over = threading.Event()

    def stop(self) -> None:
        """Begin no further step."""
        self._over.set()

    def run(self) -> None:
        """Do step after step until the worker has something to do."""
        if self._over.wait(self._idle_s):
            return
        try:
            for _ in self._steps():
                if self._over.is_set():
                    return
        except Exception:
            # A run that needs it reports the error to those who wait for it.
            log.warning("the warm-up ended early", exc_info=True)

    def _steps(self) -> Iterator[None]:
        find_commit()
        yield
        compile_shuffling()
        yield
        demo = presets.load("demo").spec
        for model in ({"kind": "logistic"}, demo["problem"]["model"]):
            document = demo | {"problem": demo["problem"] | {"model": model}, "rounds": 1}
            simulation = self._create(
                ExperimentSpec.model_validate(document).arms()[0].spec,
                0,
                device=self._device,
            )
            yield
            simulation.advance()
            yield
        _rest()
