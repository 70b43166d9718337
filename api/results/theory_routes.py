"""`/v1/experiments/{id}/theory`: what closed forms say of an experiment, to lay over what
came out.
"""

from typing import Annotated

from fastapi import Query

from api.http.authentication import Reader
from api.http.dependencies import ExperimentId, Store
from api.http.problems import responses
from api.http.routing import Router
from api.results import theory
from fedq.schemas import Theory

router = Router(prefix="/v1/experiments", tags=["results"])

Points = Annotated[
    int, Query(ge=2, le=2_000, description="Maximum number of points of a curve; denser at the beginning.")
]


@router.get("/{experiment_id}/theory", responses=responses(404, 422), summary="Read closed-form predictions")
def read_theory(
    principal: Reader, experiment_id: ExperimentId, database: Store, points: Points = theory.ROUNDS
) -> Theory:
    """Return the closed form of each arm with formula, source and curves, or the reason why there
    is none.

    Closed forms cover quadratic and least-squares problems with exact gradients and full
    participation under FedAvg, FedProx, FedNova and FedLin.
    """
    return theory.read_theory(database, principal, experiment_id, points)
