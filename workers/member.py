"""One run in a worker's hands: its lease, its checkpoints and its simulation, and every write that is made of it."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from structlog.contextvars import bound_contextvars

from fedcore.errors import DataUnavailableError, NotFoundError, SpecificationError, StaleLeaseError
from fedcore.experiment import Simulation
from fedcore.report import RoundReport
from fedcore.settings import Settings
from fedcore.storage import Storage
from fedcore.store import UNAVAILABLE, Control, Database, Session, runs
from fedcore.tracing import span
from workers.checkpoints import Checkpoints
from workers.heartbeat import Lease
from workers.outcome import model_bytes, model_key, provenance
from workers.simulations import Simulations

_RETRY_S = 0.5
"""How often a write is tried again while the database is away."""

Result = TypeVar("Result")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker carries runs out with."""

    settings: Settings
    database: Database
    storage: Storage
    simulations: Simulations
    device: str
    stopping: Callable[[], bool]
    """Whether the worker has been asked to end."""


class Member:
    """A claimed run while a turn with it lasts; alone, or one of a gang, whose other members it does not know."""

    simulation: Simulation

    def __init__(self, resources: Resources, lease: Lease) -> None:
        self.lease, self.left = lease, False
        """`left`: the run is no longer in this worker's hands."""
        self.reports: list[RoundReport] = []
        """The rounds since the last commit."""
        self._resources, self._checkpoints = resources, Checkpoints.of(resources.storage, lease.claim)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever goes wrong in the block is written to the run, or left to its lease; it then has left."""
        claim = self.lease.claim
        with bound_contextvars(run_id=claim.run_id, experiment_id=claim.experiment_id, fence=claim.fence):
            try:
                yield
            except StaleLeaseError as error:
                log.warning("%s", error)
                self._leave()
                self._sweep()
            except (SpecificationError, DataUnavailableError) as error:
                self._fail(str(error), max_attempts=1)
            except UNAVAILABLE as error:
                log.error("run %s is left to its lease, the database is away: %s", claim.run_id, error)  # noqa: TRY400 - expected
                self.left = True
            except Exception as error:
                log.exception("run %s failed", claim.run_id)
                self._fail(f"{type(error).__name__}: {error}", max_attempts=self._resources.settings.attempts)

    def load(self) -> None:
        """Stand after the last committed round; rounds that come after the newest readable checkpoint are played again."""
        self.reports.clear()
        self.simulation = self._resources.simulations.at(self.lease.claim, self._checkpoints)
        while self.simulation.round < self.lease.claim.done:
            self.simulation.advance()
            self._check_lease()

    def reload(self) -> None:
        """As `load`, where the simulation's state is in doubt."""
        self._resources.simulations.forget(self.lease.claim)
        self.load()

    def commit(self, *, turn_over: bool) -> Control:
        """Save the state and commit the reports, whole; says what comes next."""
        self._check_lease()
        began, reports, settings = time.monotonic(), self.reports, self._resources.settings
        claim, made_with = self.lease.claim, provenance(self.simulation, self._resources.device)

        def write(session: Session, again: bool) -> Control:
            if again and runs.committed(session, claim, reports[-1].round):
                return runs.renew(session, claim, settings.lease_seconds)
            return runs.commit_slice(
                session, claim, reports, checkpoint=key, lease_s=settings.lease_seconds, provenance=made_with, turn_over=turn_over
            )

        with span("commit", rounds=len(reports)):
            key = self._checkpoints.save(self.simulation)
            try:
                control = self._persist(write)
            except StaleLeaseError:
                self._checkpoints.drop(key)
                raise
        self._checkpoints.keep(key)
        self.lease.claim, self.reports = claim.at(self.simulation.round, key), []
        log.debug("slice committed up to round %d, saved in %.3f s", self.simulation.round, time.monotonic() - began)
        return control

    def hand_back(self, control: Control) -> None:
        """Give the run up, to be gone on with later."""
        if control is not Control.YIELD:
            self._resources.simulations.forget(self.lease.claim)
        self.left = True
        self._persist(lambda session, _: runs.hand_back(session, self.lease.claim))
        log.info("run handed back after round %d: %s", self.lease.claim.done, control)

    def finish(self) -> None:
        """The run has played its last round."""
        claim, simulation, key = self.lease.claim, self.simulation, model_key(self.lease.claim)
        self._resources.storage.put(key, model_bytes(simulation, claim))
        made_with = provenance(simulation, self._resources.device)
        diverged_round = simulation.round if simulation.diverged else None
        self._leave()
        self._persist(lambda session, _: runs.finish(session, claim, model=key, provenance=made_with, diverged_round=diverged_round))
        log.info("run finished after round %d", claim.done)

    def _leave(self) -> None:
        self._resources.simulations.forget(self.lease.claim)
        self.left = True

    def _check_lease(self) -> None:
        claim = self.lease.claim
        if self.lease.lost:
            raise StaleLeaseError(f"run {claim.run_id} was taken from {claim.worker} (claim {claim.fence}) by its lease")

    def _persist(self, write: Callable[[Session, bool], Result]) -> Result:
        """`write` in a transaction, again while the database is away; it is told when an earlier try may have gone through."""
        give_up, again = time.monotonic() + self._resources.settings.retry_seconds, False
        while True:
            try:
                with self._resources.database.transaction() as session:
                    return write(session, again)
            except UNAVAILABLE as error:
                if time.monotonic() > give_up:
                    raise
                log.warning("run %s waits for the database: %s", self.lease.claim.run_id, error)
            again = True
            time.sleep(_RETRY_S)

    def _fail(self, error: str, max_attempts: int) -> None:
        self._leave()
        try:
            with self._resources.database.transaction() as session:
                runs.fail(session, self.lease.claim, error, max_attempts, self._resources.settings.backoff_seconds)
        except (StaleLeaseError, *UNAVAILABLE) as refused:
            log.warning("run %s is left to its lease: %s", self.lease.claim.run_id, refused)

    def _sweep(self) -> None:
        """Remove the files of a run that was deleted while it was played here."""
        run_id = self.lease.claim.run_id
        try:
            with self._resources.database.reading() as session:
                runs.find(session, run_id)
        except NotFoundError:
            self._resources.storage.delete_prefix(run_id)
