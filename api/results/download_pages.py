"""`/experiments/{id}/download/...`: files as links fetch them, which cannot say what form they
want.
"""

from typing import Literal, NamedTuple

from fastapi import APIRouter, Response

from api.http.authentication import Reader
from api.http.dependencies import ExperimentId, Store
from api.results.curves import Window
from api.results.queries import read_results
from api.results.summaries import METRICS
from fedcore.platform.store import experiments
from fedcore.spec import yaml_documents
from fedq.results.tables import CSV, PARQUET, Table, written

EVERYTHING = Window(100_000)
"""Of a curve: all that there may be."""

router = APIRouter(prefix="/experiments/{experiment_id}/download", include_in_schema=False)


class Form(NamedTuple):
    """A file that results are written to."""

    media_type: str
    table: Table


FORMS = {
    "summary.csv": Form(CSV, "summary"),
    "curves.csv": Form(CSV, "curves"),
    "summary.parquet": Form(PARQUET, "summary"),
    "curves.parquet": Form(PARQUET, "curves"),
}
Name = Literal["summary.csv", "curves.csv", "summary.parquet", "curves.parquet"]


@router.get("/results.json")
def read_json(principal: Reader, experiment_id: ExperimentId, database: Store) -> Response:
    """All of the results."""
    found = read_results(database, principal, experiment_id, METRICS, EVERYTHING)
    return _file(
        Response(found.model_dump_json(), media_type="application/json"), f"{experiment_id}-results.json"
    )


@router.get("/specification.yaml")
def read_specification(principal: Reader, experiment_id: ExperimentId, database: Store) -> Response:
    """Return the specification with all defaults."""
    with database.reading() as session:
        spec = experiments.find(session, experiment_id, principal.sees).spec
    return _file(Response(yaml_documents.dump(spec), media_type="application/yaml"), f"{experiment_id}.yaml")


@router.get("/{name}")
def read_table(principal: Reader, experiment_id: ExperimentId, database: Store, name: Name) -> Response:
    """Figures over seeds, or curves, as a table."""
    form = FORMS[name]
    found = read_results(database, principal, experiment_id, METRICS, EVERYTHING)
    return _file(
        Response(written(found, form.table, form.media_type), media_type=form.media_type),
        f"{experiment_id}-{name}",
    )


def _file(response: Response, name: str) -> Response:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
