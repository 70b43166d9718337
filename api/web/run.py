"""`/runs/{id}`: one run, as a page or as a part of that of its experiment."""

from fastapi import APIRouter, Request, Response

from api.access.auth import Reader
from api.answers.runs import run_answer
from api.dependencies import Configuration, RunId, Store
from api.web import history
from api.web.rendering import is_fragment, page
from fedcore.platform.store import experiments, runs, wait_reasons

router = APIRouter(prefix="/runs", include_in_schema=False)


@router.get("/{run_id}")
def read_run(request: Request, principal: Reader, run_id: RunId, database: Store, settings: Configuration) -> Response:
    """How it stands, what happened to it, what made it, and its files."""
    with database.reading() as session:
        record = runs.find(session, run_id, principal.sees)
        experiment = experiments.find(session, record.experiment_id, principal.sees)
        held = wait_reasons.reasons(session, [record], settings.seen_seconds).get(run_id)
        happened = history.of_run(session, record, experiment)
    template = "_run.html" if is_fragment(request) else "run.html"
    return page(request, template, run=run_answer(record, held), experiment=experiment.name, claims=record.fence, happened=happened)
