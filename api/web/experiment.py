"""`/experiments/{id}`: one experiment, and the parts of its page that are asked for anew."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.access.auth import Reader
from api.answers.runs import run_answer
from api.answers.search import search_answer
from api.dependencies import Configuration, Cursor, ExperimentId, Store
from api.results.claims import read_claims
from api.web import curves, listings, standing
from api.web.rendering import page
from fedcore.platform.store import experiments, imports, runs, search, wait_reasons
from fedcore.spec import sweep, yaml_documents

RUNS = 100
"""On a page."""

router = APIRouter(prefix="/experiments/{experiment_id}", include_in_schema=False)

Seen = Annotated[str, Query(max_length=16, description="The digest of what the page shows.")]


@router.get("")
def read_page(request: Request, principal: Reader, experiment_id: ExperimentId, database: Store) -> Response:
    """The whole page."""
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
        now = standing.read(session, experiment_id, principal.sees)
        has_search = record.spec.get("search") is not None
    specification = yaml_documents.dump(record.spec)
    return page(
        request,
        "experiment.html",
        now=now,
        **curves.told([record.spec], sweep.size(record.spec["sweep"])),
        specification=specification,
        highlighted=listings.highlight(specification),
        provenance=record.provenance,
        has_search=has_search,
        has_claims="preset" in imports.origin(record.provenance),
    )


@router.get("/standing")
def read_standing(request: Request, principal: Reader, experiment_id: ExperimentId, database: Store, seen: Seen = "") -> Response:
    """Name, status, progress and what can be done; 204 where the page shows that already."""
    with database.reading() as session:
        now = standing.read(session, experiment_id, principal.sees)
    return Response(status_code=204) if now.digest == seen else page(request, "_standing.html", now=now)


@router.get("/runs")
def read_runs(
    request: Request, principal: Reader, experiment_id: ExperimentId, database: Store, settings: Configuration, cursor: Cursor = None
) -> Response:
    """Some of the runs, by arm and seed."""
    with database.reading() as session:
        experiments.find(session, experiment_id, principal.sees)
        records = runs.of_experiment(session, experiment_id, after=cursor or None, limit=RUNS + 1)
        held = wait_reasons.reasons(session, records[:RUNS], settings.seen_seconds)
    items = [run_answer(record, held.get(record.id)) for record in records[:RUNS]]
    following = items[-1].id if len(records) > RUNS else None
    return page(request, "_runs.html", experiment_id=experiment_id, items=items, cursor=cursor, next=following)


@router.get("/search")
def read_rungs(request: Request, principal: Reader, experiment_id: ExperimentId, database: Store) -> Response:
    """What its search has decided, rung by rung."""
    with database.reading() as session:
        experiments.find(session, experiment_id, principal.sees)
        found = search_answer(session, search.find(session, experiment_id))
    by_rung = [[item for item in found.items if item.rung == rung] for rung in range(len(found.rungs))]
    return page(request, "_search.html", search=found, by_rung=by_rung)


@router.get("/claims")
def read_verdicts(request: Request, principal: Reader, experiment_id: ExperimentId, database: Store) -> Response:
    """What its publication claims, and whether it holds here."""
    return page(request, "_claims.html", found=read_claims(database, principal, experiment_id))
