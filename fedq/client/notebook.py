"""HTML for notebooks: experiments, results and tables, and progress that is updated in place."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape

from fedcore.platform.status import Status
from fedcore.statistics.summary import headline
from fedq import schemas
from fedq.client.events import Event
from fedq.results import presentation
from fedq.schemas import RoundEvent, Run, StatusEvent

MOST_BARS = 40
MOST_ROWS = 20


def experiment_html(item: schemas.Experiment) -> str:
    """An experiment with its status, progress and runs."""
    runs = ", ".join(f"{count} {status}" for status, count in sorted(item.progress.runs.items()))
    done, total = item.progress.rounds_done, presentation.counted(item.progress.rounds_total, "round")
    eta = presentation.remaining(item.progress.eta_s)
    head = f"<b>{escape(item.name)}</b> <code>{escape(item.id)}</code>: {item.status}"
    parts = [head, f"{bar_html(item.progress.fraction)} {done:,} of {total}{eta}", f"runs: {runs}"]
    if item.warning:
        parts.append(f"<b>warning:</b> {escape(item.warning)}")
    if item.error:
        parts.append(f"<b>error:</b> {escape(item.error)}")
    return "<div>" + "<br>".join(parts) + "</div>"


def results_html(item: schemas.ArmResults) -> str:
    """The arms of an experiment, compared by their headline metric."""
    return table_html(*presentation.comparison_cells(item))


def rows_html(columns: Sequence[str], rows: Sequence[dict[str, object]]) -> str:
    """The first rows of a table, and the number of rows."""
    shown = [
        ["" if row.get(column) is None else str(row[column]) for column in columns]
        for row in rows[:MOST_ROWS]
    ]
    return table_html(
        columns,
        shown,
        presentation.counted(len(rows), "row")
        + (f", showing the first {MOST_ROWS}" if len(rows) > MOST_ROWS else ""),
    )


def runs_html(runs: Sequence[tuple[str, str, int, int, str]]) -> str:
    """Progress of runs, given as name, status, completed rounds, total rounds and note. At most
    MOST_BARS rows are shown.
    """
    done, total = sum(run[2] for run in runs), sum(run[3] for run in runs)
    counts = ", ".join(f"{count} {status}" for status, count in Counter(str(run[1]) for run in runs).items())
    rows = "".join(map(_run_html, runs[:MOST_BARS]))
    return (
        f"<div>{bar_html(done / max(total, 1))} {done:,} of {presentation.counted(total, 'round')};"
        f" {counts}</div><table><tbody>{rows}</tbody></table>"
    )


def bar_html(fraction: float) -> str:
    """A progress bar."""
    return f'<progress max="1" value="{fraction:.4f}"></progress>'


def table_html(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str) -> str:
    """A table of plain text."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = f"<caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _run_html(run: tuple[str, str, int, int, str]) -> str:
    name, status, done, total, note = run
    cells = (escape(name), bar_html(done / max(total, 1)), f"{done:,}/{total:,}", status, escape(note))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


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
    metric = headline(measured)
    return presentation.measurement(metric, measured[metric]) if metric in measured else ""


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
