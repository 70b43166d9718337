"""`/v1/experiments/{id}/claims`: what a publication printed and claimed, beside what came out of
the preset that follows it.
"""

from api.http.authentication import Reader
from api.http.dependencies import ExperimentId, Store
from api.http.problems import responses
from api.http.routing import Router
from api.results import claims
from fedq.schemas import Claims

router = Router(prefix="/v1/experiments", tags=["results"])


@router.get(
    "/{experiment_id}/claims", responses=responses(404, 422), summary="Compare results with the publication"
)
def read_claims(principal: Reader, experiment_id: ExperimentId, database: Store) -> Claims:
    """Return the published claims and numbers for an experiment submitted as a preset, with the
    measured results.

    Each claim has a verdict. Results are final once the status of the experiment is final.
    """
    return claims.read_claims(database, principal, experiment_id)
