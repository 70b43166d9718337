"""`/v1/experiments/{id}/report.html` (`.md`): an experiment on one page that stands by itself.

What a report tells, put together from what the API answers.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Path, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from api.experiments.responses import experiment_answer
from api.http.authentication import Reader
from api.http.dependencies import ExperimentId, Store
from api.http.drawing_gate import DrawingGate
from api.http.problems import responses
from api.http.routing import Router
from api.results.claims import claims_of, metrics_of, preset_of
from api.results.curves import Window
from api.results.rows import rows_of
from api.results.summaries import METRICS, TOTALS, results_of
from api.runs.responses import run_answer
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, experiments
from fedcore.platform.store.reproductions import ENGINE_CHOICE, MODEL_SHA256
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.presets import Preset
from fedcore.spec import yaml_documents
from fedcore.statistics.summary import BETTER, HEADLINES
from fedq.figures.drawing import draw
from fedq.results import presentation
from fedq.results.presentation import comparison_cells
from fedq.schemas import Claims, Experiment, Results, Run

POINTS = 500
"""Of each curve in a picture."""
OWN = frozenset({ENGINE_CHOICE, "gang", MODEL_SHA256})
"""Entries of a provenance that concern one run only, or its timing."""


class Cell(NamedTuple):
    """Cell of a table."""

    text: str
    best: bool
    """True if no other arm has a better mean."""


class Section(NamedTuple):
    """One metric."""

    name: str
    """In words."""
    columns: Sequence[str]
    """Of the table: what is said of an arm."""
    rows: Sequence[Sequence[Cell]]
    """A row per arm."""
    picture: str
    """Curves over the rounds, SVG as a data URI."""


class ReportContent(NamedTuple):
    """An experiment, as it is told."""

    experiment: Experiment
    written_at: datetime
    """When this was put together."""
    confidence: float
    sections: Sequence[Section]
    claims: Claims | None
    """Where it follows a publication."""
    runs: Sequence[Run]
    specification: str
    """As YAML."""
    carried_out: Sequence[Mapping[str, Any]]
    """How its runs were carried out: each way once."""


def content(principal: Principal, experiment_id: str, database: Database) -> ReportContent:
    """An experiment that `principal` may see, as it is at one moment; raises ResourceNotFoundError."""
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
        preset = _preset(record)
        rows = rows_of(
            session,
            record,
            dict.fromkeys((*METRICS, *TOTALS, *(() if preset is None else metrics_of(preset)))),
        )
        told = experiment_answer(session, record)
    results, carried = results_of(rows, METRICS, Window(POINTS)), list(map(run_answer, rows.runs))
    return ReportContent(
        experiment=told,
        written_at=datetime.now(UTC),
        confidence=results.confidence,
        sections=list(_sections(results)),
        claims=None if preset is None else claims_of(rows, preset),
        runs=carried,
        specification=yaml_documents.dump(record.spec),
        carried_out=_ways(carried),
    )


def _preset(record: ExperimentRecord) -> Preset | None:
    """The preset that it follows, where that claims anything of it."""
    try:
        return preset_of(record)
    except ResourceNotFoundError:
        return None


def _sections(results: Results) -> Iterator[Section]:
    """The most telling metrics first."""
    found = {name for arm in results.arms for name in arm.curves}
    for metric in [*(name for name in HEADLINES if name in found), *sorted(found - set(HEADLINES))]:
        table, best = comparison_cells(results, metric), _best(results, metric)
        rows = [
            [Cell(text, best.get(column) == row) for column, text in zip(table.columns, texts, strict=True)]
            for row, texts in enumerate(table.rows)
        ]
        picture = base64.b64encode(draw(results, metric, "round", "svg")).decode()
        yield Section(metric.replace("_", " "), table.columns, rows, f"data:image/svg+xml;base64,{picture}")


def _best(results: Results, metric: str) -> dict[str, int]:
    """The row with the best mean in each of the columns `best` and `final`, where the metric has
    better and worse.
    """
    best: dict[str, int] = {}
    for figure in ("best", "final") if metric in BETTER and len(results.arms) > 1 else ():
        found = {
            row: getattr(arm.metrics[metric], figure)
            for row, arm in enumerate(results.arms)
            if metric in arm.metrics
        }
        means = {row: estimate.mean for row, estimate in found.items() if estimate is not None}
        if means:
            best[figure] = BETTER[metric](means, key=means.__getitem__)
    return best


def _ways(carried: Sequence[Run]) -> list[Mapping[str, Any]]:
    """How runs were carried out, each way once."""
    ways: list[Mapping[str, Any]] = []
    for run in carried:
        way = {name: value for name, value in run.provenance.items() if name not in OWN}
        if way and way not in ways:
            ways.append(way)
    return ways


router = Router(prefix="/v1/experiments", tags=["results"])

Form = Annotated[Literal["html", "md"], Path(description="Format: HTML or Markdown.")]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
"""It holds what users have written: nothing in it is run, and nothing is loaded."""
MEDIA = {"html": "text/html; charset=utf-8", "md": "text/markdown; charset=utf-8"}
_SPECIAL, _BACKTICKS = re.compile(r"([\\|\[\]])"), re.compile("`+")
ANSWER: dict[int | str, Any] = {
    200: {
        "description": "The report.",
        "content": {name.partition(";")[0]: {"schema": {"type": "string"}} for name in MEDIA.values()},
    },
    **responses(404, 422),
}


@router.get(
    "/{experiment_id}/report.{form}", response_class=Response, responses=ANSWER, summary="Read a report"
)
async def read_report(
    request: Request, principal: Reader, experiment_id: ExperimentId, form: Form, database: Store
) -> Response:
    """Return a self-contained file with a table and figure of each metric, claims, runs,
    specification, provenance and how to reproduce it.

    Figures are embedded. A report of an unfinished experiment lists what is missing.
    """

    def work() -> str:
        return (
            _templates()
            .get_template(f"report.{form}")
            .render(content(principal, experiment_id, database)._asdict())
        )

    gate: DrawingGate = request.app.state.drawing_gate
    text = await gate.run(principal.owner, work)
    return Response(text, media_type=MEDIA[form], headers={"Content-Security-Policy": POLICY})


@cache
def _templates() -> Environment:
    """Both forms; what users have written is escaped as each needs it."""
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
    """Text in one line of Markdown that ends no cell of a table and starts no tag, link or
    image.
    """
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split())).replace("<", "&lt;")


def _fence(code: str) -> str:
    """Backticks that no line of `code` can close: more than there are in a row in it."""
    return "`" * max(4, 1 + max(map(len, _BACKTICKS.findall(code)), default=0))
