"""HTML for notebooks: small tables that follow the light or dark theme."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from fedq import schemas
from fedq.results import comparison

MOST_BARS = 40


def experiment(item: schemas.Experiment) -> str:
    """An experiment with its status, progress and runs."""
    runs = ", ".join(f"{count} {status}" for status, count in sorted(item.progress.runs.items()))
    eta = "" if item.progress.eta_s is None else f", about {item.progress.eta_s:.0f} s remaining"
    rounds = f"{item.progress.rounds_done:,} of {item.progress.rounds_total:,} rounds"
    head = f"<b>{escape(item.name)}</b> <code>{escape(item.id)}</code>: {item.status}"
    parts = [head, f"{bar(item.progress.fraction)} {rounds}{eta}", f"runs: {runs}"]
    if item.error:
        parts.append(f"<b>error:</b> {escape(item.error)}")
    return "<div>" + "<br>".join(parts) + "</div>"


def results(item: schemas.ArmResults) -> str:
    """The arms of an experiment, compared by their headline metric."""
    return table(*comparison.comparison(item))


def lines(columns: Sequence[str], rows: Sequence[dict[str, object]], most: int = 20) -> str:
    """The first rows of a table, and the number of rows."""
    shown = [
        ["" if row.get(column) is None else str(row[column]) for column in columns] for row in rows[:most]
    ]
    return table(
        columns, shown, f"{len(rows):,} rows" + (f", showing the first {most}" if len(rows) > most else "")
    )


def bars(runs: Sequence[tuple[str, str, int, int, str]]) -> str:
    """Progress of runs, given as name, status, completed rounds, total rounds and note. At most
    MOST_BARS rows are shown.
    """
    done, total = sum(run[2] for run in runs), sum(run[3] for run in runs)
    counts = ", ".join(f"{count} {status}" for status, count in Counter(str(run[1]) for run in runs).items())
    rows = "".join(map(_progress, runs[:MOST_BARS]))
    return (
        f"<div>{bar(done / max(total, 1))} {done:,} of {total:,} rounds;"
        f" {counts}</div><table><tbody>{rows}</tbody></table>"
    )


def bar(fraction: float) -> str:
    """A progress bar."""
    return f'<progress max="1" value="{fraction:.4f}"></progress>'


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str) -> str:
    """A table of plain text."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = f"<caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _progress(run: tuple[str, str, int, int, str]) -> str:
    name, status, done, total, note = run
    cells = (escape(name), bar(done / max(total, 1)), f"{done:,}/{total:,}", status, escape(note))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
