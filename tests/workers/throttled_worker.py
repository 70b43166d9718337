"""A throttled worker: it plays some rounds at full speed and then dawdles, at no cost, so that the
run is in the middle for long.

So a test need not be quick to disturb it there, and the rounds need not be slow. It is let go once
the test has done its worst.
"""

import time
from collections.abc import Callable
from pathlib import Path

from fedcore.engine.round import PendingRound
from fedcore.settings import Settings
from fedcore.simulation.simulation import Simulation
from workers import worker
from workers.claimed_run import Pacing
from workers.runner import Runner, build_runner

SHORT_SLICES = Pacing(saving_share=1e6, backoff_s=0)
"""Slices of the length that a test asks for, however long saving takes, and no pause after an error."""
PAUSE_S, LOOK_S = 0.5, 0.01
FULL_SPEED = "full-speed"
"""The file, in the folder where the worker was started, that says how many rounds it plays at full
speed.
"""


class Throttled(Simulation):
    """A run that dawdles before each round, from some round on."""

    def begin(self) -> PendingRound:
        deadline = time.monotonic() + PAUSE_S
        while self.round >= int(Path(FULL_SPEED).read_text()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return super().begin()


def main() -> None:
    """As `workers.worker`."""
    worker.main(_throttled)


def _throttled(configured: Settings, worker_id: str, stopping: Callable[[], bool]) -> Runner:
    return build_runner(configured, worker_id, stopping, create=Throttled, pacing=SHORT_SLICES)
