"""One session of a worker with a batch of runs, or with one: slices of rounds, until each run has
ended or is handed back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedcore.platform.store import UNAVAILABLE, runs
from fedcore.platform.tracing import span
from fedcore.simulation.driver import Driver
from workers.celery_app import MAX_TASK_SECONDS

if TYPE_CHECKING:
    from workers.claimed_run import ClaimedRun, Resources


def play(resources: Resources, members: Sequence[ClaimedRun]) -> None:
    """Execute loaded runs until each is finished, at a rung or interrupted by its user, or until other runs
    come first.
    """
    ends = time.monotonic() + MAX_TASK_SECONDS
    driver = Driver(
        members,
        resources.settings.slice_seconds,
        lambda: resources.stopping() or time.monotonic() > ends,
        interrupted=_Requests(resources),
        saving_share=resources.pacing.saving_share,
        around=lambda count: span("slice", runs=count),
    )
    for _ in driver.play():
        pass


class _Requests:
    """Looks between rounds whether users request something of the runs, so that it takes effect after the
    present round.
    """

    def __init__(self, resources: Resources) -> None:
        self._database, self._pacing = resources.database, resources.pacing
        self._look_at = time.monotonic() + self._pacing.look_s

    def __call__(self, active: Sequence[ClaimedRun]) -> bool:
        leases = [member.lease for member in active]
        if any(lease.interrupted for lease in leases):
            return True
        if (began := time.monotonic()) < self._look_at:
            return False
        try:
            with self._database.reading() as session:
                requested = runs.should_interrupt(session, [lease.claim for lease in leases])
        except UNAVAILABLE:
            requested = False  # the commit waits for it
        ended = time.monotonic()
        self._look_at = ended + max(self._pacing.look_s, (ended - began) / self._pacing.look_share)
        return requested
