"""Experiments, results, tables and runs as HTML, for notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from fedq.results import presentation

if TYPE_CHECKING:
    from fedq.schemas import ArmResults, Experiment

MOST_BARS = 40
MOST_ROWS = 20


def experiment_html(item: Experiment) -> str:
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


def results_html(item: ArmResults) -> str:
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
