"""`/v1/experiments/{id}/search`: decisions of a search, and their grounds."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.http.authentication import Reader
from api.http.dependencies import DatabaseDep, ExperimentId
from api.http.parameters import NextLink, StartAfter
from api.http.problems import describe_errors
from api.search.service import ARRIVALS, search_answer
from fedcore.platform.store import experiments, search
from fedq.schemas import SearchPage

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

Limit = Annotated[int, Query(ge=1, le=ARRIVALS, description="Maximum number of arrivals per page.")]


@router.get(
    "/{experiment_id}/search", responses=describe_errors(404, 422), summary="Read the decisions of a search"
)
def read_search(
    principal: Reader,
    experiment_id: ExperimentId,
    database: DatabaseDep,
    link: NextLink,
    start: StartAfter = 0,
    limit: Limit = ARRIVALS,
) -> SearchPage:
    """Return arms in the order in which they reached rungs, with value, rank and decision.

    404 without a search.

    From the order and the values every decision follows again
    (`fedcore.simulation.halving.replay`).
    """
    with database.reading() as session:
        experiments.find(session, experiment_id, principal.sees)
        page = search_answer(session, search.find(session, experiment_id), start, limit)
    link(str(page.next) if len(page.items) == limit else None)
    return page
