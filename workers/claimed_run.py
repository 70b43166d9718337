"""One run of a worker: its lease, its checkpoints and its simulation, and every write made of it.

While the database or the storage is away, a worker keeps the run and retries for a while.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from structlog.contextvars import bound_contextvars
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from fedcore.errors import (
    BusyError,
    DataUnavailableError,
    ResourceNotFoundError,
    SpecificationError,
    StaleLeaseError,
    StorageError,
    UserCodeError,
)
from fedcore.platform.artifacts import describe_run, model_files
from fedcore.platform.provenance import best_key_beside
from fedcore.platform.storage import Storage
from fedcore.platform.store import UNAVAILABLE, Database, Session, WorkerDirective, runs, telemetry
from fedcore.platform.store.backoff import BACKOFF_S, MAX_ATTEMPTS
from fedcore.platform.store.leases import Claim
from fedcore.platform.tracing import span
from fedcore.settings import Settings
from fedcore.simulation.computed_run import ComputedRun
from fedcore.simulation.driver import SAVING_SHARE, Played
from fedcore.simulation.out_of_memory import is_out_of_memory, release_memory, user_message
from fedcore.simulation.simulation import MAX_BATCH_RUNS
from workers.confined.simulation import ConfinedSimulation
from workers.liveness import HeldLease
from workers.shard_group import GroupPacing
from workers.simulations import Checkpoints, SimulationCache
from workers.telemetry import SHORTEST_S

TRANSIENT_ERRORS = (StorageError, *UNAVAILABLE)
"""Errors of a database or a storage that is away and may come back."""

TURN_S, TURN_SLICES = 60.0, 20
"""A worker returns its run to the queue after this long, and this many slices, if other runs of the same
priority are waiting.
"""

Result = TypeVar("Result")
log = logging.getLogger(__name__)


def retry_transient(
    operation: Callable[[bool], Result],
    timeout_s: float,
    every_s: float,
    should_abort: Callable[[], bool] = lambda: False,
) -> Result:
    """Call `operation` every `every_s` seconds until it succeeds, `timeout_s` seconds have passed, or
    `should_abort`.

    The argument of `operation` is True from the second attempt on: an earlier one may have gone
    through.
    """
    timed_out = stop_after_delay(timeout_s)
    retrying = Retrying(
        retry=retry_if_exception_type(TRANSIENT_ERRORS),
        stop=lambda state: timed_out(state) or should_abort(),
        wait=wait_fixed(every_s),
        before_sleep=_log_retry,
        reraise=True,
    )
    for attempt in retrying:
        with attempt:
            return operation(attempt.retry_state.attempt_number > 1)
    raise AssertionError("the last attempt returns or raises")


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome and state.outcome.exception()
    log.warning("tried again in %g s: %s", state.upcoming_sleep, error)


@dataclass(frozen=True, slots=True)
class Pacing:
    """How often and how long a worker does what is not computing, and with how many runs."""

    batch_runs: int = MAX_BATCH_RUNS
    """Maximum number of runs of one experiment trained together, where that is faster than training
    them in sequence.
    """
    backoff_s: float = BACKOFF_S
    """Approximate delay before a failed run is retried. It doubles with each attempt until a round is
    completed, up to 300 s.
    """
    saving_share: float = SAVING_SHARE
    """Largest share of the time, approximately, that saving and committing slices may take."""
    look_s: float = 0.1
    look_share: float = 0.01
    """Between rounds, requests of users are looked up at most once per `look_s` and for `look_share`
    of the time: after each round, if rounds are long.
    """
    retry_s: float = 60.0
    retry_every_s: float = 0.5
    """While the database or the storage is unavailable or full, a worker retries for `retry_s` before it
    releases the run, every `retry_every_s`.
    """
    group: GroupPacing = field(default_factory=GroupPacing)


@dataclass(frozen=True, slots=True)
class Resources:
    """Settings, connections and device of one worker."""

    settings: Settings
    database: Database
    storage: Storage
    simulations: SimulationCache
    device: str
    stopping: Callable[[], bool]
    """True once the worker has been asked to end."""
    pacing: Pacing


def model_key(claim: Claim) -> str:
    """Storage key of the final model; a worker that lost its claim writes to another one."""
    return f"{claim.run_id}/model-{claim.fence}.safetensors"


class ClaimedRun(Played):
    """A claimed run during one session, alone or in a batch whose other runs it does not know. Its rounds go
    to the database, its state to the storage.
    """

    def __init__(self, resources: Resources, lease: HeldLease) -> None:
        super().__init__(lease.claim.until)
        self.lease, self._began = lease, time.monotonic()
        self._directive = WorkerDirective.CONTINUE
        self._resources, self._checkpoints = resources, Checkpoints(resources.storage, lease.claim)

    @contextmanager
    def handling_errors(self) -> Iterator[None]:
        """Write an error in the block to the run, or leave the run to its lease; it then has
        `released`.
        """
        claim, short = self.lease.claim, False
        with bound_contextvars(run_id=claim.run_id, experiment_id=claim.experiment_id, fence=claim.fence):
            try:
                yield
            except StaleLeaseError as error:
                log.warning("%s", error)
                self._let_go()
                self._delete_orphaned_files()
            except SpecificationError as error:
                log.warning("run %s cannot be executed: %s", claim.run_id, error)
                self._fail(str(error), max_attempts=1)
            except UserCodeError as error:
                log.warning("run %s failed in its bundle", claim.run_id)
                self._fail(str(error), max_attempts=1)
            except (BusyError, DataUnavailableError, StorageError) as error:
                # The files may come back, or another worker may have them, or time.
                log.warning("run %s is released: %s", claim.run_id, error)
                self._fail(str(error))
            except UNAVAILABLE as error:
                log.error("run %s is left to its lease, the database is away: %s", claim.run_id, error)  # noqa: TRY400 - expected
                self.released = True
            except Exception as error:
                log.exception("run %s failed", claim.run_id)
                short = is_out_of_memory(error)
                self._fail(
                    user_message(error) if short else f"{type(error).__name__}: {error}",
                    out_of_memory=short,
                )
            if short:
                # Only now is what the error referred to free: the next run needs it.
                release_memory()

    @property
    def begun(self) -> bool:
        """True if some rounds are stored."""
        return self.lease.claim.done > 0

    def load(self) -> None:
        """Restore the state after the last committed round.

        Rounds after the newest readable checkpoint are executed again.
        """
        self.reports.clear()
        began = time.monotonic()
        self.simulation = self._with_storage_retry(self._restored)
        while self.simulation.round < self.lease.claim.done:
            self.simulation.advance()
            self._check_lease()
        log.info(
            "run loaded in %.3f s: engine %s on %s",
            time.monotonic() - began,
            self.simulation.facts.choice.engine,
            self._resources.device,
        )

    def _restored(self) -> ComputedRun:
        self._checkpoints.find()
        lease = self.lease
        return self._resources.simulations.get(lease.claim, self._checkpoints, lambda: lease.lost)

    def reload(self) -> None:
        """Load again after the last commit, where the state of the simulation is in doubt."""
        self._resources.simulations.evict(self.lease.claim)
        vars(self).pop("simulation", None)
        self.load()

    def commit(self) -> bool:
        """Save the state, commit the reports and learn what comes next."""
        self._check_lease()
        began, reports, settings = time.monotonic(), self.reports, self._resources.settings
        claim = self.lease.claim
        made_with = self._provenance()
        turn_over = began - self._began > max(TURN_S, TURN_SLICES * settings.slice_seconds)

        def write(session: Session, again: bool) -> WorkerDirective:
            if again and runs.committed(session, claim, reports[-1].round):
                return runs.renew(session, claim, settings.lease_seconds)
            return runs.commit_slice(
                session,
                claim,
                reports,
                checkpoint=key,
                lease_s=settings.lease_seconds,
                provenance=made_with,
                turn_over=turn_over,
            )

        with span("commit", rounds=len(reports)):
            state = self.simulation.checkpoint()
            key = self._with_storage_retry(lambda: self._checkpoints.save(self.simulation.round, state))
            try:
                self._directive = self._with_database_retry(write)
            except StaleLeaseError:
                self._checkpoints.drop(key)
                raise
        self._checkpoints.keep(key)
        self.lease.claim, self.reports = claim.at(self.simulation.round, key), []
        log.debug(
            "slice committed up to round %d, saved in %.3f s", self.simulation.round, time.monotonic() - began
        )
        return self._directive is WorkerDirective.CONTINUE

    def hand_back(self) -> None:
        """Leave the run, to be continued later."""
        self.lease.telemetry.measure(SHORTEST_S)
        if self._directive not in (WorkerDirective.CONTINUE, WorkerDirective.YIELD):
            self._resources.simulations.evict(self.lease.claim)
        self.released = True
        log.info("run handed back after round %d: %s", self.lease.claim.done, self._directive)
        self._with_database_retry(lambda session, _: runs.release(session, self.lease.claim))

    def complete(self) -> None:
        """Finish the run after its last round, or pause it at a rung; store its models."""
        self.lease.telemetry.measure(SHORTEST_S)
        claim, simulation, key = self.lease.claim, self.simulation, model_key(self.lease.claim)
        files, digests = model_files(simulation, key, claim.run_id, claim.experiment_id)
        made_with = self._provenance() | digests
        for name, data in files.items():
            self._with_storage_retry(partial(self._resources.storage.put, name, data))
        if simulation.finished:
            self._finish(claim, key, made_with)
        else:
            self.released = True
            log.info("run paused at the rung of round %d", claim.done)
            self._with_database_retry(
                lambda session, _: runs.pause_at_rung(session, claim, model=key, provenance=made_with)
            )
        if claim.model not in (None, key):
            # If the storage is away, it is deleted with the experiment.
            with suppress(StorageError):
                self._resources.storage.delete(claim.model)
                self._resources.storage.delete(best_key_beside(claim.model))

    def _provenance(self) -> dict[str, Any]:
        simulation = self.simulation
        found = describe_run(simulation.facts, self._resources.device, self.lease.claim.packages)
        if isinstance(simulation, ConfinedSimulation):
            found["bundle"] = dict(simulation.bundle)
        return found

    def _finish(self, claim: Claim, key: str, made_with: Mapping[str, Any]) -> None:
        facts = self.simulation.facts
        diverged_round = facts.round if facts.diverged else None
        self._let_go()
        ending: dict[str, Any] = {"diverged_round": diverged_round, "stop_reason": facts.stopped}
        log.info("run finished after round %d", claim.done)
        self._with_database_retry(
            lambda session, _: runs.finish(session, claim, model=key, provenance=made_with, **ending)
        )

    def _let_go(self) -> None:
        self._resources.simulations.evict(self.lease.claim)
        # Others of the batch go on, and need the memory.
        vars(self).pop("simulation", None)
        self.released = True

    def _check_lease(self) -> None:
        claim = self.lease.claim
        if self.lease.lost:
            raise StaleLeaseError(
                f"run {claim.run_id} was taken from {claim.worker} (claim {claim.fence}) by its lease"
            )

    def _with_database_retry(self, write: Callable[[Session, bool], Result]) -> Result:
        """Call `write`, which locks the run, in a transaction that also stores its telemetry, again while
        the database is away.

        Its second argument is true when an earlier attempt may have gone through.
        """

        def transact(again: bool) -> Result:
            with (
                self.lease.telemetry.unstored() as unstored,
                self._resources.database.transaction() as session,
            ):
                result = write(session, again)
                telemetry.append(session, self.lease.claim.lease, *unstored)
                return result

        return retry_transient(transact, self._resources.pacing.retry_s, self._resources.pacing.retry_every_s)

    def _with_storage_retry(self, act: Callable[[], Result]) -> Result:
        """Call `act`, again while the storage is away.

        Gives up when a user wants something of the run, or the worker is to end.
        """
        aborted = lambda: self.lease.interrupted or self._resources.stopping()  # noqa: E731 - one expression
        return retry_transient(
            lambda _: act(),
            self._resources.pacing.retry_s,
            self._resources.pacing.retry_every_s,
            aborted,
        )

    def _fail(self, error: str, max_attempts: int = MAX_ATTEMPTS, *, out_of_memory: bool = False) -> None:
        self.lease.telemetry.measure(SHORTEST_S)
        self._let_go()
        backoff_s, claim = self._resources.pacing.backoff_s, self.lease.claim
        try:
            with (
                self.lease.telemetry.unstored() as unstored,
                self._resources.database.transaction() as session,
            ):
                runs.fail(session, claim, error, max_attempts, backoff_s, out_of_memory=out_of_memory)
                telemetry.append(session, claim.lease, *unstored)
        except UNAVAILABLE as away:
            log.warning("run %s is left to its lease: %s", claim.run_id, away)
        except StaleLeaseError as refused:
            log.warning("%s", refused)
            self._delete_orphaned_files()

    def _delete_orphaned_files(self) -> None:
        """Delete the files of a run that was deleted while it was executed here."""
        run_id = self.lease.claim.run_id
        try:
            with self._resources.database.reading() as session:
                runs.find(session, run_id)
        except ResourceNotFoundError:
            with suppress(StorageError):
                self._resources.storage.delete_prefix(run_id)
        except UNAVAILABLE as away:
            # Other runs of the batch go on: nothing may leave `handling_errors`, whose handlers call this.
            log.warning("not known whether run %s was deleted, its files stay: %s", run_id, away)
