"""One turn of a worker with a run: slices of rounds, each committed whole, until the run ends or is handed back."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedcore.errors import StaleLeaseError
from fedcore.experiment import Simulation
from fedcore.report import RoundReport
from fedcore.settings import Settings
from fedcore.storage import Storage
from fedcore.store import UNAVAILABLE, Control, Database, Session, runs
from fedcore.tracing import span
from workers.app import STINT_S
from workers.checkpoints import Checkpoints
from workers.heartbeat import Lease
from workers.outcome import model_bytes, model_key, provenance
from workers.simulations import Simulations

SAVING_SHARE = 0.05
"""Slices grow so long that saving and committing takes at most about this share of the time."""
_RETRY_S, _RETRY_FOR_S = 0.5, 60.0
"""How often, and how long, a write is tried again while the database is away."""

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


class Turn:
    """Plays the run of one claim; `play` may be called once."""

    def __init__(self, resources: Resources, lease: Lease) -> None:
        self._resources, self._lease, self._claim = resources, lease, lease.claim
        self._checkpoints = Checkpoints.of(resources.storage, lease.claim)
        self._began = time.monotonic()
        self._saving_s = 0.0

    def play(self) -> None:
        """Go on from the last committed round until the run is finished, interrupted by its user, or others come first.

        Raises StaleLeaseError when the run is no longer this claim's.
        """
        simulation = self._resources.simulations.at(self._claim, self._checkpoints)
        self._catch_up(simulation)
        while not simulation.finished:
            control = self._slice(simulation)
            if control is not Control.CONTINUE and not simulation.finished:
                self._hand_back(control)
                return
        self._finish(simulation)

    def _catch_up(self, simulation: Simulation) -> None:
        """Play again, to the same bit, the committed rounds that come after the newest readable checkpoint."""
        while simulation.round < self._claim.done:
            simulation.advance()
            self._check_lease()

    def _slice(self, simulation: Simulation) -> Control:
        with span("slice", after=self._claim.done):
            reports = self._advance(simulation)
        self._check_lease()
        began = time.monotonic()
        with span("commit", rounds=len(reports)):
            key = self._checkpoints.save(simulation)
            try:
                control = self._commit(simulation, reports, key)
            except StaleLeaseError:
                self._checkpoints.drop(key)
                raise
        self._checkpoints.keep(key)
        self._claim = self._claim.at(simulation.round, key)
        self._saving_s = time.monotonic() - began
        log.debug("slice committed up to round %d, saved in %.3f s", simulation.round, self._saving_s)
        over = self._resources.stopping() or time.monotonic() - self._began > STINT_S
        return Control.YIELD if over and control is Control.CONTINUE else control

    def _advance(self, simulation: Simulation) -> list[RoundReport]:
        """The rounds of one slice; a run's first slice is one round, so that there is something to read at once."""
        length_s = max(self._resources.settings.slice_seconds, self._saving_s / SAVING_SHARE) if self._claim.done else 0.0
        deadline = time.monotonic() + length_s
        reports = [simulation.advance()]
        while not (simulation.finished or time.monotonic() > deadline or self._lease.interrupted or self._resources.stopping()):
            reports.append(simulation.advance())
        return reports

    def _commit(self, simulation: Simulation, reports: Sequence[RoundReport], key: str) -> Control:
        claim, settings = self._claim, self._resources.settings
        made_with = provenance(simulation, self._resources.device)
        turn_over = time.monotonic() - self._began > settings.turn_seconds

        def write(session: Session, again: bool) -> Control:
            if again and runs.committed(session, claim, reports[-1].round):
                return runs.renew(session, claim, settings.lease_seconds)
            return runs.commit_slice(
                session, claim, reports, checkpoint=key, lease_s=settings.lease_seconds, provenance=made_with, turn_over=turn_over
            )

        return self._persist(write)

    def _hand_back(self, control: Control) -> None:
        if control is not Control.YIELD:
            self._resources.simulations.forget()
        self._persist(lambda session, _: runs.hand_back(session, self._claim))
        log.info("run handed back after round %d: %s", self._claim.done, control)

    def _finish(self, simulation: Simulation) -> None:
        claim, key = self._claim, model_key(self._claim)
        self._resources.storage.put(key, model_bytes(simulation, claim))
        made_with = provenance(simulation, self._resources.device)
        diverged_round = simulation.round if simulation.diverged else None
        self._resources.simulations.forget()
        self._persist(lambda session, _: runs.finish(session, claim, model=key, provenance=made_with, diverged_round=diverged_round))
        log.info("run finished after round %d", claim.done)

    def _check_lease(self) -> None:
        if self._lease.lost:
            raise StaleLeaseError(f"run {self._claim.run_id} was taken from {self._claim.worker} (claim {self._claim.fence}) by its lease")

    def _persist(self, write: Callable[[Session, bool], Result]) -> Result:
        """`write` in a transaction, again while the database is away; it is told when an earlier try may have gone through."""
        give_up, again = time.monotonic() + _RETRY_FOR_S, False
        while True:
            try:
                with self._resources.database.transaction() as session:
                    return write(session, again)
            except UNAVAILABLE as error:
                if time.monotonic() > give_up:
                    raise
                log.warning("run %s waits for the database: %s", self._claim.run_id, error)
            again = True
            time.sleep(_RETRY_S)
