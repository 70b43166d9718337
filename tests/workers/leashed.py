"""A worker on a leash: it plays some rounds at full speed and then dawdles, at no cost, so that the
run is in the middle for long.

So a test need not be quick to disturb it there, and the rounds need not be slow. It is let go once
the test has done its worst.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workers import session, worker
from workers.claimed_run import ClaimedRun

PAUSE_S, LOOK_S = 0.5, 0.01
LEASH = "leash"
"""The file, in the folder where the worker was started, that says before how many rounds it need
not wait.
"""


def main() -> None:
    """As `workers.worker`."""
    # Slices of the length that is asked for, however long saving takes.
    session.SAVING_SHARE = 1e6
    session.WorkSession._round = _on_a_leash(session.WorkSession._round)  # type: ignore[method-assign]
    worker.main()


def _on_a_leash(play: Any) -> Any:
    def round(self: session.WorkSession, group: Sequence[ClaimedRun]) -> None:
        deadline = time.monotonic() + PAUSE_S
        while (
            max(member.simulation.round for member in group) >= int(Path(LEASH).read_text())
            and time.monotonic() < deadline
        ):
            time.sleep(LOOK_S)
        play(self, group)

    return round
