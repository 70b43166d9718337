"""Progress of an experiment: a bar per run on a terminal and in a notebook, otherwise a line per
finished run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import Progress

from fedcore.platform.status import ENDED, Status
from fedq.client.events import Event
from fedq.client.notebook import in_notebook, round_note, run_label
from fedq.console import PlainConsole, progress_bars
from fedq.results.presentation import counted
from fedq.schemas import RoundEvent, Run, StatusEvent

Tell = Callable[[Event], None]

MOST_BARS = 40
"""Maximum number of bars. More runs all share one: separate bars would not fit the screen."""


@contextmanager
def report(runs: Sequence[Run], console: PlainConsole | None = None) -> Iterator[Tell]:
    """Yield a function that shows each event of an experiment with these runs, by default on
    stderr.
    """
    console = console or PlainConsole(stderr=True)
    if console.is_jupyter:
        with in_notebook(runs) as tell:
            yield tell
        return
    if not console.is_terminal:
        yield _Lines(runs, console).tell
        return
    with progress_bars(console) as progress:
        yield _Bars(runs, progress).tell if len(runs) <= MOST_BARS else _Bar(runs, progress).tell


class _Bars:
    """A bar per run."""

    def __init__(self, runs: Sequence[Run], progress: Progress) -> None:
        self._progress = progress
        self._tasks = {
            run.id: progress.add_task(run_label(run), total=run.rounds_total, start=False, note="")
            for run in runs
        }

    def tell(self, event: Event) -> None:
        match event:
            case RoundEvent(run_id=run_id, round=round):
                self._progress.start_task(self._tasks[run_id])
                self._progress.update(self._tasks[run_id], completed=round, note=round_note(event))
            case StatusEvent(run_id=str(run_id), status=Status.SUCCEEDED):
                # One that diverged or was stopped early has fewer rounds than were asked for.
                self._progress.update(
                    self._tasks[run_id], completed=event.rounds_done, total=event.rounds_done
                )
            case StatusEvent(
                run_id=str(run_id), status=Status.AT_RUNG | Status.PAUSED | Status.FAILED | Status.CANCELLED
            ):
                self._progress.update(self._tasks[run_id], note=event.status)


class _Bar:
    """One bar for all runs. Changes in place."""

    def __init__(self, runs: Sequence[Run], progress: Progress) -> None:
        self._progress, self._ended, self._runs = progress, 0, len(runs)
        self._rounds: dict[str, int] = {}
        self._task = progress.add_task(
            counted(len(runs), "run"), total=sum(run.rounds_total for run in runs), note=""
        )

    def tell(self, event: Event) -> None:
        if isinstance(event, RoundEvent):
            self._progress.advance(self._task, event.round - self._rounds.get(event.run_id, 0))
            self._rounds[event.run_id] = event.round
        elif isinstance(event, StatusEvent) and event.run_id is not None and event.status in ENDED:
            self._ended += 1
            self._progress.update(self._task, note=f"{self._ended} of {counted(self._runs, 'run')} finished")


class _Lines:
    """A line per finished run. Changes in place."""

    def __init__(self, runs: Sequence[Run], console: PlainConsole) -> None:
        self._console = console
        self._names = {run.id: run_label(run) for run in runs}
        self._notes: dict[str, str] = {}

    def tell(self, event: Event) -> None:
        if isinstance(event, RoundEvent):
            self._notes[event.run_id] = round_note(event)
        elif isinstance(event, StatusEvent) and event.run_id is not None and event.status in ENDED:
            told = f"{self._names[event.run_id]}: {event.status}"
            if event.rounds_done is not None:
                told += f" after {counted(event.rounds_done, 'round')}"
            note = self._notes.get(event.run_id)
            self._console.print(f"{told}, {note}" if note else told)
