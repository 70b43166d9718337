"""Progress of an experiment in a notebook, updated in place."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fedcore.platform.status import Status
from fedcore.statistics.summary import choose_headline
from fedq.client.events import Event
from fedq.results.html import runs_html
from fedq.results.presentation import measurement
from fedq.schemas import RoundEvent, Run, StatusEvent


def run_label(run: Run) -> str:
    """Name of a run within its experiment."""
    return f"{run.arm_name}, seed {run.seed}"


def round_note(row: RoundEvent) -> str:
    """Headline metric of a round with its value."""
    measured = {
        name: value
        for name, value in {**row.extra, **row.model_dump(exclude={"extra"})}.items()
        if value is not None
    }
    metric = choose_headline(measured)
    return measurement(metric, measured[metric]) if metric in measured else ""


BREATH_S = 0.25
"""Minimum seconds between two updates."""

Draw = Callable[[str], None]
"""Replaces the displayed HTML."""


@contextmanager
def in_notebook(
    runs: Sequence[Run], draw: Draw | None = None, breath_s: float = BREATH_S
) -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows each event of an experiment with these runs below the current
    cell.
    """
    shown = _Rows(runs, draw or _cell(), breath_s)
    try:
        yield shown.tell
    finally:
        shown.draw()


class _Rows:
    """Table with a row per run. Changes in place."""

    def __init__(self, runs: Sequence[Run], draw: Draw, breath_s: float) -> None:
        self._draw, self._breath_s, self._drawn = draw, breath_s, -breath_s
        self._names = {run.id: run_label(run) for run in runs}
        self._totals = {run.id: run.rounds_total for run in runs}
        self._rounds = {run.id: run.rounds_done for run in runs}
        self._statuses: dict[str, Status] = {run.id: run.status for run in runs}
        self._notes: dict[str, str] = {}
        self.draw()

    def tell(self, event: Event) -> None:
        match event:
            case RoundEvent(run_id=run_id, round=round):
                self._rounds[run_id], self._notes[run_id] = round, round_note(event)
            case StatusEvent(run_id=str(run_id), status=status):
                self._statuses[run_id] = status
                if status is Status.SUCCEEDED and event.rounds_done is not None:
                    # One that diverged or was stopped early has fewer rounds than were asked for.
                    self._rounds[run_id] = self._totals[run_id] = event.rounds_done
        if time.monotonic() - self._drawn > self._breath_s:
            self.draw()

    def draw(self) -> None:
        cells = (
            (self._names[id], self._statuses[id], self._rounds[id], self._totals[id], self._notes.get(id, ""))
            for id in self._names
        )
        self._draw(runs_html(list(cells)))
        self._drawn = time.monotonic()


def _cell() -> Draw:
    """Return a function that shows HTML below the current cell."""
    from IPython.display import HTML, display  # there wherever a notebook is

    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))
