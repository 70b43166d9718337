"""`/compare`: arms of any experiments side by side; `/experiments/{id}/download`: results as files."""

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, AppStateDep, DatabaseDep, ExperimentId
from api.results.compared_arms import gather
from api.results.queries import curve_context, read_results
from api.web.rendering import render_page
from fedcore.platform.store import experiments
from fedcore.platform.store.experiments import Filter
from fedcore.spec import yaml_documents
from fedq.results.curves import Window
from fedq.results.frames import Table
from fedq.results.summaries import metric_names
from fedq.results.tables import CSV, PARQUET, encode_table

OFFERED = 50
"""The newest experiments, to choose from."""

router = APIRouter(include_in_schema=False)

Wanted = Annotated[
    list[Annotated[str, Query(max_length=300, pattern=NO_NUL)]],
    Query(alias="arm", max_length=100, default_factory=list),
]


@router.get("/compare")
def read_compare(request: Request, principal: Reader, database: DatabaseDep, wanted: Wanted) -> Response:
    """Return curves and results of the arms in the address, and the experiments that can be added."""
    with database.reading() as session:
        chosen = gather(session, principal, wanted)
        offered = experiments.page(session, Filter(seen_by=principal.sees), limit=OFFERED).items
        specifications = {one.experiment.id: one.experiment.spec for one in chosen}
    arms = [
        (f"{one.experiment.id}:{one.arm}", one.experiment.name, one.name, one.experiment.id) for one in chosen
    ]
    query = urlencode([("arm", entry) for entry in wanted])
    return render_page(
        request,
        "compare.html",
        members=arms,
        offered=[(item.id, item.name) for item in offered if item.id not in wanted],
        results=f"/v1/compare?{query}",
        figure=f"/v1/compare/figure.svg?{query}",
        theory=None,
        **curve_context(specifications.values(), len(chosen)),
    )


EVERYTHING = Window(100_000)
"""Window with all points of a curve."""


FORMS: dict[str, tuple[Table, str]] = {
    "summary.csv": ("summary", CSV),
    "curves.csv": ("curves", CSV),
    "summary.parquet": ("summary", PARQUET),
    "curves.parquet": ("curves", PARQUET),
}
"""Table and media type of each file of results."""
Name = Literal["summary.csv", "curves.csv", "summary.parquet", "curves.parquet"]


@router.get("/experiments/{experiment_id}/download/specification.yaml")
def read_specification(principal: Reader, experiment_id: ExperimentId, database: DatabaseDep) -> Response:
    """Return the specification with all defaults."""
    with database.reading() as session:
        spec = experiments.find(session, experiment_id, principal.sees).spec
    return _file(Response(yaml_documents.dump(spec), media_type="application/yaml"), f"{experiment_id}.yaml")


@router.get("/experiments/{experiment_id}/download/{name}")
async def read_table(
    principal: Reader, experiment_id: ExperimentId, state: AppStateDep, name: Name
) -> Response:
    """Return statistics over seeds, or curves, as a table."""
    table, media_type = FORMS[name]

    def work() -> Response:
        found = read_results(state.database, principal, experiment_id, metric_names(), EVERYTHING)
        return Response(encode_table(found, table, media_type), media_type=media_type)

    return _file(await state.reading_gate.run(principal.owner, work), f"{experiment_id}-{name}")


def _file(response: Response, name: str) -> Response:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
