"""Plays runs to their ends, one or several that are trained together, in slices of rounds. Where the rounds
of a run go is its own: a database, a folder, or the loop of a caller.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Generic, TypeVar

from fedcore.simulation.out_of_memory import release_memory
from fedcore.simulation.simulation import Simulation, advance_batch

if TYPE_CHECKING:
    from fedcore.simulation.computed_run import ComputedRun
    from fedcore.simulation.report import RoundReport

SAVING_SHARE = 0.05
"""Largest share of the time, approximately, that saving and committing slices may take."""

log = logging.getLogger(__name__)


class Played:
    """A run that a driver plays; subclasses say where its rounds and its state go."""

    simulation: ComputedRun

    def __init__(self, until: int) -> None:
        """Play up to round `until` at most."""
        self.until, self.released = until, False
        """`released`: the run is no longer played here."""
        self.reports: list[RoundReport] = []
        """The rounds since the last commit."""

    @property
    def at_end(self) -> bool:
        """True after its last round, or after round `until`."""
        return self.simulation.finished or self.simulation.round >= self.until

    @property
    def begun(self) -> bool:
        """True if some rounds are stored. The first slice of a run is one round, so that there is something
        to read at once.
        """
        return True

    def handling_errors(self) -> AbstractContextManager[object]:
        """Surrounds what is done with the run. An error that does not leave it has `released` the run."""
        return nullcontext()

    def note(self, report: RoundReport) -> None:
        """A round was played."""
        self.reports.append(report)

    def commit(self) -> bool:
        """Store the `reports` and the state of the run; False if it is to be handed back."""
        self.reports = []
        return True

    def complete(self) -> None:
        """Store the end of the run, or its state at round `until`."""

    def hand_back(self) -> None:
        """Leave the run, whose rounds are committed, to be continued later."""

    def reload(self) -> None:
        """Restore the run after its last commit, where the state of its simulation is in doubt."""
        raise NotImplementedError


R = TypeVar("R", bound=Played)


class Driver(Generic[R]):
    """Plays runs until each has ended, is handed back or has failed; `play` may be called once.

    Runs are committed one by one: one that leaves does not hold up the others.
    """

    def __init__(
        self,
        runs: Sequence[R],
        slice_s: float,
        stopping: Callable[[], bool],
        *,
        interrupted: Callable[[Sequence[R]], bool] = lambda _: False,
        saving_share: float = SAVING_SHARE,
        around: Callable[[int], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Commit the rounds about every `slice_s` seconds, but not so often that it takes more than
        `saving_share` of the time. `stopping` is true once all runs are to be handed back after the
        present round, `interrupted` if a slice of these runs should end here. `around` surrounds each
        slice of a number of runs.
        """
        self._runs, self._slice_s, self._stopping = list(runs), slice_s, stopping
        self._interrupted, self._saving_share, self._around = interrupted, saving_share, around
        self._together = True
        self._saving_s = 0.0

    def play(self) -> Iterator[tuple[R, RoundReport]]:
        """Play round after round, and yield each with its run."""
        while self._left():
            with self._around(len(self._runs)):
                yield from self._slice()
            self._commit()

    def _left(self) -> bool:
        for run in self._runs:
            if not run.released and run.at_end:
                with run.handling_errors():
                    run.complete()
                run.released = True
        self._runs = [run for run in self._runs if not run.released]
        return bool(self._runs)

    def _slice(self) -> Iterator[tuple[R, RoundReport]]:
        begun = all(run.begun for run in self._runs)
        length_s = max(self._slice_s, self._saving_s / self._saving_share) if begun else 0.0
        deadline = time.monotonic() + length_s
        while active := [run for run in self._runs if not (run.released or run.at_end)]:
            for group in [active] if self._together else [[run] for run in active]:
                yield from self._round(group)
            if time.monotonic() > deadline or self._stopping() or self._interrupted(active):
                return

    def _round(self, group: Sequence[R]) -> list[tuple[R, RoundReport]]:
        """Play one round of each run.

        If it fails for several, they go on separately, which shows whose error it is.
        """
        if len(group) > 1:
            reports = self._all_at_once(group)
            if reports is None:
                # Here, where nothing refers to what the error referred to any more.
                release_memory()
                for run in group:
                    with run.handling_errors():
                        run.reload()
                return []
        else:
            reports = []
            with group[0].handling_errors():
                reports = [group[0].simulation.advance()]
        played = list(zip(group, reports, strict=False))
        for run, report in played:
            run.note(report)
        return played

    def _all_at_once(self, group: Sequence[R]) -> list[RoundReport] | None:
        """Play one round of a batch; None where it failed."""
        try:
            # Runs that another process computes do not benefit from batching, and go alone.
            return advance_batch([run.simulation for run in group if isinstance(run.simulation, Simulation)])
        except Exception:
            log.exception("%d runs failed together, they go on separately", len(group))
            self._together = False
            return None

    def _commit(self) -> None:
        began = time.monotonic()
        leaving = list(self._runs) if self._stopping() else []
        for run in self._runs:
            if run.reports and not run.released:
                with run.handling_errors():
                    leaving += [] if run.commit() else [run]
        self._saving_s = time.monotonic() - began
        # After all commits: a run that is back in the queue would come before the others.
        for run in leaving:
            if not (run.released or run.at_end):
                with run.handling_errors():
                    run.hand_back()
                run.released = True
