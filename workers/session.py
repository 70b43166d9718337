"""One session of a worker with a batch of runs, or with one: slices of rounds, until each run has
ended or is handed back.
"""

import logging
import time
from collections.abc import Sequence

from fedcore.platform.out_of_memory import release_memory
from fedcore.platform.store import UNAVAILABLE, WorkerDirective, runs
from fedcore.platform.tracing import span
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation, advance_batch
from workers.celery_app import MAX_TASK_SECONDS
from workers.claimed_run import ClaimedRun, Resources

TURN_S, TURN_SLICES = 60.0, 20
"""A worker returns its run to the queue after this long, and this many slices, if other runs of the same
priority are waiting.
"""

log = logging.getLogger(__name__)


class WorkSession:
    """Executes the runs of some claims; `run` may be called once.

    Each run is committed in a transaction of its own: one that is paused, cancelled or lost leaves,
    and the others go on.
    """

    def __init__(self, resources: Resources, members: Sequence[ClaimedRun]) -> None:
        """The runs are loaded."""
        self._resources, self._members = resources, list(members)
        self._pacing = resources.pacing
        self._together = True
        self._began = time.monotonic()
        self._saving_s = self._look_at = 0.0

    def run(self) -> None:
        """Execute slices until every run is finished, at a rung or interrupted by its user, or until
        other runs come first.
        """
        while True:
            for member in self._members:
                if not member.released and member.at_end:
                    with member.handling_errors():
                        member.complete()
            self._members = [member for member in self._members if not member.released]
            if not self._members:
                return
            self._run_slice()

    def _run_slice(self) -> None:
        with span("slice", runs=len(self._members)):
            self._advance()
        began, over = time.monotonic(), self._should_stop
        controls = [(member, self._committed(member)) for member in self._members if not member.released]
        self._saving_s = time.monotonic() - began
        # After all commits: a run that is back in the queue would come before the others.
        for member, control in controls:
            if not (member.released or member.at_end) and (over or control is not WorkerDirective.CONTINUE):
                with member.handling_errors():
                    member.release(WorkerDirective.YIELD if control is WorkerDirective.CONTINUE else control)

    def _advance(self) -> None:
        """Execute the rounds of one slice.

        A run's first slice is one round, so that there is something to read at once.
        """
        begun = all(member.lease.claim.done for member in self._members)
        length_s = (
            max(self._resources.settings.slice_seconds, self._saving_s / self._pacing.saving_share)
            if begun
            else 0.0
        )
        deadline, self._look_at = time.monotonic() + length_s, time.monotonic() + self._pacing.look_s
        while active := [member for member in self._members if not (member.released or member.at_end)]:
            for group in [active] if self._together else [[member] for member in active]:
                self._round(group)
            if time.monotonic() > deadline or self._resources.stopping() or self._interrupt_requested(active):
                return

    def _interrupt_requested(self, active: Sequence[ClaimedRun]) -> bool:
        """True if the slice should end here, so that a request of a user takes effect after this
        round.
        """
        if any(member.lease.interrupted for member in active):
            return True
        if (began := time.monotonic()) < self._look_at:
            return False
        try:
            with self._resources.database.reading() as session:
                requested = runs.should_interrupt(session, [member.lease.claim for member in active])
        except UNAVAILABLE:
            requested = False  # the commit waits for it
        ended = time.monotonic()
        self._look_at = ended + max(self._pacing.look_s, (ended - began) / self._pacing.look_share)
        return requested

    def _round(self, group: Sequence[ClaimedRun]) -> None:
        """Execute one round of each run.

        If it fails for several, they go on separately, which shows whose error it is.
        """
        if len(group) == 1:
            (member,) = group
            with member.handling_errors():
                member.reports.append(member.simulation.advance())
            return
        reports = self._all_at_once(group)
        if reports is None:
            # Here, where nothing refers to what the error referred to any more.
            release_memory()
            for member in group:
                with member.handling_errors():
                    member.reload()
            return
        for member, report in zip(group, reports, strict=True):
            member.reports.append(report)

    def _all_at_once(self, group: Sequence[ClaimedRun]) -> list[RoundReport] | None:
        """Execute one round of the batch and return its reports; None where it failed."""
        try:
            # Runs of bundles do not benefit from batching, and go alone.
            return advance_batch(
                [member.simulation for member in group if isinstance(member.simulation, Simulation)]
            )
        except Exception:
            log.exception("%d runs failed together, they go on separately", len(group))
            self._together = False
            return None

    def _committed(self, member: ClaimedRun) -> WorkerDirective:
        turn_s = max(TURN_S, TURN_SLICES * self._resources.settings.slice_seconds)
        turn_over = time.monotonic() - self._began > turn_s
        control = WorkerDirective.CONTINUE
        if member.reports:
            with member.handling_errors():
                control = member.commit(turn_over=turn_over)
        return control

    @property
    def _should_stop(self) -> bool:
        return self._resources.stopping() or time.monotonic() - self._began > MAX_TASK_SECONDS
