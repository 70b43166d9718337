"""Reports: an experiment on one page, as HTML with its figures in it, or as Markdown that names files of
figures.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from api.experiments.service import experiment_answer
from api.results.claims import claims_of, metrics_of, preset_of
from api.results.summaries import ResultRows, results_of, rows_of
from api.runs.service import run_answer
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.access import Principal
from fedcore.platform.provenance import BEST_MODEL, ENGINE_CHOICE, MODEL_SHA256
from fedcore.platform.store import Database, experiments
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.presets import PresetSpec
from fedcore.spec import yaml_documents
from fedcore.statistics.summary import HEADLINES, better_of
from fedq.figures.drawing import draw
from fedq.results import presentation
from fedq.results.confirmation import CONFIRMATION
from fedq.results.curves import Window
from fedq.results.presentation import comparison_cells
from fedq.results.summaries import TOTALS, best_arms_of, by_arm, metric_names
from fedq.schemas import Results, Run

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
"""Reports contain text of users, so nothing in them is executed or loaded."""
MEDIA = {"html": "text/html; charset=utf-8", "md": "text/markdown; charset=utf-8"}
_SPECIAL, _BACKTICKS = re.compile(r"([\\|\[\]])"), re.compile("`+")
POINTS = 500
"""Maximum number of points of a curve."""
OWN = frozenset({BEST_MODEL, ENGINE_CHOICE, "batched_runs", MODEL_SHA256})
"""Entries of a provenance that concern one run only, or its timing."""


class Cell(NamedTuple):
    """Cell of a table."""

    text: str
    best: bool
    """True if no other arm has a better mean; lines of reference do not count."""


class Section(NamedTuple):
    """Section on one metric."""

    name: str
    """Name of the metric."""
    columns: Sequence[str]
    """Columns of the table."""
    rows: Sequence[Sequence[Cell]]
    """One row per arm."""
    says: str
    """The conclusion on the best arms in words; empty without one."""
    picture: str
    """Figure of the curves: a data URI in HTML, the name of a file in Markdown."""


def render(form: str, principal: Principal, experiment_id: str, database: Database) -> str:
    """Return the report of an experiment in `form`, html or md; raises ResourceNotFoundError."""
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
        preset = _preset(record)
        rows = rows_of(
            session,
            record,
            dict.fromkeys((*metric_names(), *TOTALS, *(() if preset is None else metrics_of(preset)))),
        )
        told = experiment_answer(session, record)
    results, carried = results_of(rows, metric_names(), Window(POINTS)), list(map(run_answer, rows.runs))
    return (
        _templates()
        .get_template(f"report.{form}")
        .render(
            experiment=told,
            written_at=datetime.now(UTC),
            confidence=results.confidence,
            selection=results.selection,
            sections=list(_sections(results, rows, _embedded if form == "html" else _beside)),
            # None unless it follows a publication.
            claims=None if preset is None else claims_of(rows, preset),
            runs=carried,
            specification=yaml_documents.dump(record.spec),
            carried_out=_ways(carried),
        )
    )


def _preset(record: ExperimentRecord) -> PresetSpec | None:
    """Return the preset of the experiment, None if it has none with claims."""
    try:
        return preset_of(record)
    except ResourceNotFoundError:
        return None


def _sections(
    results: Results, rows_read: ResultRows, picture: Callable[[Results, str], str]
) -> Iterator[Section]:
    """Yield the sections, the most telling metrics first."""
    found = {name for arm in results.arms for name in arm.curves}
    arms = list(by_arm(rows_read.runs).values())
    references = [place for place, arm in enumerate(results.arms) if arm.reference]
    for metric in [*(name for name in HEADLINES if name in found), *sorted(found - set(HEADLINES))]:
        best_arms = best_arms_of(
            arms,
            rows_read.series,
            [metric],
            confirmed=CONFIRMATION in rows_read.experiment.tags,
            references=references,
        )
        table = comparison_cells(results.model_copy(update={"best_arms": best_arms}), metric)
        best = _best(results, metric)
        rows = [
            [Cell(text, best.get(column) == row) for column, text in zip(table.columns, texts, strict=True)]
            for row, texts in enumerate(table.rows)
        ]
        says = "" if best_arms is None else best_arms.says
        yield Section(metric.replace("_", " "), table.columns, rows, says, picture(results, metric))


def _embedded(results: Results, metric: str) -> str:
    picture = base64.b64encode(draw(results, metric, "round", "svg")).decode()
    return f"data:image/svg+xml;base64,{picture}"


def _beside(results: Results, metric: str) -> str:
    """Name of a file: what shows Markdown, such as GitHub, drops data URIs."""
    return presentation.figure_file(results.experiment_id, metric)


def _best(results: Results, metric: str) -> dict[str, int]:
    """Return the row with the best mean for the columns `best` and `final`, if the metric has a
    direction.
    """
    best: dict[str, int] = {}
    better = better_of(metric)
    for figure in ("best", "final") if better and len(results.arms) > 1 else ():
        found = {
            row: getattr(arm.metrics[metric], figure)
            for row, arm in enumerate(results.arms)
            if metric in arm.metrics and not arm.reference
        }
        means = {row: estimate.mean for row, estimate in found.items() if estimate is not None}
        if means and better:
            best[figure] = better(means, key=means.__getitem__)
    return best


def _ways(carried: Sequence[Run]) -> list[Mapping[str, Any]]:
    """Return the distinct provenances of runs."""
    ways: list[Mapping[str, Any]] = []
    for run in carried:
        way = {name: value for name, value in run.provenance.items() if name not in OWN}
        if way and way not in ways:
            ways.append(way)
    return ways


@cache
def _templates() -> Environment:
    """Return the environment of both formats, which escapes text of users as each requires."""
    made = Environment(
        loader=PackageLoader("api.results", package_path=""),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters.update(presentation.FILTERS)
    made.filters |= {"cell": _in_a_line, "fence": _fence}
    return made


def _in_a_line(text: object) -> str:
    """Return text as one line of Markdown that cannot end a cell or start a tag, link or image."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split())).replace("<", "&lt;")


def _fence(code: str) -> str:
    """Return more backticks than `code` contains in a row."""
    return "`" * max(4, 1 + max(map(len, _BACKTICKS.findall(code)), default=0))
