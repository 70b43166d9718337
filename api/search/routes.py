"""`/v1/experiments/{id}/search`: which arms were promoted and stopped, and what that was decided on."""

from typing import Annotated

from fastapi import Query

from api.http.authentication import Reader
from api.http.dependencies import ExperimentId, Store
from api.http.problems import responses
from api.http.routing import Router
from api.search.responses import ARRIVALS, search_answer
from fedcore.platform.store import experiments, search
from fedq.schemas import SearchPage

router = Router(prefix="/v1/experiments", tags=["experiments"])

After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Only arrivals after this sequence.")]
Limit = Annotated[int, Query(ge=1, le=ARRIVALS, description="Arrivals on a page, at most.")]


@router.get("/{experiment_id}/search", responses=responses(404, 422), summary="Read what a search has decided")
def read_search(principal: Reader, experiment_id: ExperimentId, database: Store, after: After = 0, limit: Limit = ARRIVALS) -> SearchPage:
    """Arms in the order in which they came to rungs, each with its value, its rank and what became of it; 404 without a search.

    From the order and the values every decision follows again (`fedcore.simulation.halving.replay`).
    """
    with database.reading() as session:
        experiments.find(session, experiment_id, principal.sees)
        return search_answer(session, search.find(session, experiment_id), after, limit)
