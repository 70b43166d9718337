"""`/v1/experiments/{id}/theory`: what closed forms say of an experiment, to lay over what came out."""

from typing import Annotated

from fastapi import Query

from api.http.authentication import Reader
from api.http.dependencies import ExperimentId, Store
from api.http.problems import responses
from api.http.routing import Router
from api.results import theory
from fedq.schemas import Theory

router = Router(prefix="/v1/experiments", tags=["results"])

Points = Annotated[int, Query(ge=2, le=2_000, description="Rounds of a curve, at most; closer together at the beginning.")]


@router.get("/{experiment_id}/theory", responses=responses(404, 422), summary="Read what theory says")
def read_theory(principal: Reader, experiment_id: ExperimentId, database: Store, points: Points = theory.ROUNDS) -> Theory:
    """Per arm the closed form that applies, with its formula and source, and its curves; or what stands in the way of one.

    Known are quadratic and least-squares problems with exact gradients and full participation, under FedAvg, FedProx, FedNova and FedLin.
    """
    return theory.read_theory(database, principal, experiment_id, points)
