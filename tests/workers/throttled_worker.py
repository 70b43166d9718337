"""A worker on a leash: it plays some rounds at full speed and then dawdles, at no cost, so that the
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
LEASH = "leash"
"""The file, in the folder where the worker was started, that says before how many rounds it need
not wait.
"""


class Leashed(Simulation):
    """A run that dawdles before each round, from some round on."""

    def begin(self) -> PendingRound:
        deadline = time.monotonic() + PAUSE_S
        while self.round >= int(Path(LEASH).read_text()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return super().begin()


def main() -> None:
    """As `workers.worker`."""
    worker.main(_leashed)


def _leashed(configured: Settings, worker_id: str, stopping: Callable[[], bool]) -> Runner:
    return build_runner(configured, worker_id, stopping, create=Leashed, pacing=SHORT_SLICES)
