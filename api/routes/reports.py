"""`/v1/experiments/{id}/report.html` (`.md`): an experiment on one page that stands by itself."""

import re
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import Path, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from api.access.auth import Reader
from api.dependencies import ExperimentId, Store
from api.drawing.gate import DrawingGate
from api.problems import responses
from api.reports.content import content
from api.routing import Router
from fedq.results import verdicts

router = Router(prefix="/v1/experiments", tags=["results"])

Form = Annotated[Literal["html", "md"], Path(description="HTML, or Markdown.")]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
"""It holds what users have written: nothing in it is run, and nothing is loaded."""
MEDIA = {"html": "text/html; charset=utf-8", "md": "text/markdown; charset=utf-8"}
_SPECIAL, _BACKTICKS = re.compile(r"([\\|\[\]])"), re.compile("`+")
ANSWER: dict[int | str, Any] = {
    200: {"description": "The report.", "content": {name.partition(";")[0]: {"schema": {"type": "string"}} for name in MEDIA.values()}},
    **responses(404, 422),
}


@router.get("/{experiment_id}/report.{form}", response_class=Response, responses=ANSWER, summary="Read a report")
async def read_report(request: Request, principal: Reader, experiment_id: ExperimentId, form: Form, database: Store) -> Response:
    """One file that stands by itself: a table and a figure of each metric, claims, runs, specification, provenance, how to repeat it.

    Pictures are in it. It may be read at any time, and says what was not done yet.
    """

    def work() -> str:
        return _templates().get_template(f"report.{form}").render(content(principal, experiment_id, database)._asdict())

    gate: DrawingGate = request.app.state.drawing_gate
    text = await gate.run(principal.owner, work)
    return Response(text, media_type=MEDIA[form], headers={"Content-Security-Policy": POLICY})


@cache
def _templates() -> Environment:
    """Both forms; what users have written is escaped as each needs it."""
    made = Environment(
        loader=PackageLoader("api.reports", package_path=""),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters.update(verdicts.FILTERS)
    made.filters |= {"cell": _in_a_line, "fence": _fence}
    return made


def _in_a_line(text: object) -> str:
    """Text in one line of Markdown that ends no cell of a table and starts no tag, link or image."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split())).replace("<", "&lt;")


def _fence(code: str) -> str:
    """Backticks that no line of `code` can close: more than there are in a row in it."""
    return "`" * max(4, 1 + max(map(len, _BACKTICKS.findall(code)), default=0))
