"""`/v1/experiments/{id}/claims`: what a publication printed and claimed, beside what came out of the preset that follows it."""

from api.http.authentication import Reader
from api.http.dependencies import ExperimentId, Store
from api.http.problems import responses
from api.http.routing import Router
from api.results import claims
from fedq.schemas import Claims

router = Router(prefix="/v1/experiments", tags=["results"])


@router.get("/{experiment_id}/claims", responses=responses(404, 422), summary="Hold results against the publication")
def read_claims(principal: Reader, experiment_id: ExperimentId, database: Store) -> Claims:
    """For an experiment that was submitted as a preset, here or where it was imported from: what its publication claims and printed.

    Each claim comes with a verdict, each number with what came out.

    They may be read at any time; they are final once the experiment's status is.
    """
    return claims.read_claims(database, principal, experiment_id)
