"""`/v1/experiments/{id}/reproduce` and `/reproduction`: an experiment again, and whether it came out identical."""

from collections.abc import Mapping
from typing import Any

from fastapi import Response

from api.access.auth import Reader, Submitter
from api.access.deeds import Note
from api.answers.experiments import experiment_answer
from api.bodies.submissions import specification
from api.dependencies import Configuration, ExperimentId, IdempotencyKey, Store
from api.intake import order_of
from api.problems import responses
from api.results.repetition import repetition
from api.routing import Router
from api.wakeups import Wake
from fedcore.errors import ConflictError, NotFoundError
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, Status, experiments, imports, reproductions
from fedcore.platform.store.tables import ExperimentRecord
from fedq.schemas import Experiment, Reproduction

router = Router(prefix="/v1/experiments", tags=["results"])

REPRODUCES = "reproduces"


@router.post(
    "/{experiment_id}/reproduce",
    status_code=201,
    responses={
        201: {"headers": {"Location": {"description": "Where the repetition is.", "schema": {"type": "string"}}}},
        **responses(404, 409, 422),
    },
    summary="Repeat an experiment",
)
def reproduce(
    principal: Submitter,
    experiment_id: ExperimentId,
    database: Store,
    settings: Configuration,
    response: Response,
    wake: Wake,
    note: Note,
    idempotency_key: IdempotencyKey = None,
) -> Experiment:
    """Submit what an experiment was made from once more, each run with the engine that the original's was carried out with.

    `GET .../reproduction` of the new experiment says whether it came out identical. 409 unless the original has succeeded.
    """
    original = _finished(database, principal, experiment_id)
    spec, code = specification(original.spec, database, settings, principal.sees)
    provenance = _made_from(original.provenance) | code | {REPRODUCES: original.id}
    order = order_of(principal, spec, provenance, idempotency_key, f"reproduce {original.id}")
    with database.transaction() as session:
        record, overview = experiments.create(session, order)
        if overview is not None:
            reproductions.follow(session, record.id, original.id)
        note(session, record.id)
        answer = experiment_answer(session, record, overview)
    response.headers["Location"] = f"{router.prefix}/{record.id}"
    wake(spec.execution.queue)
    return answer


@router.get("/{experiment_id}/reproduction", responses=responses(404, 422), summary="Hold a repetition against its original")
def read_reproduction(principal: Reader, experiment_id: ExperimentId, database: Store) -> Reproduction:
    """Whether an experiment made by `POST .../reproduce` came out identical, and if not, where it differs first and what was not the same.

    Compared are all numbers of all rounds but wall-clock times, bit by bit, and the digests of the final models.
    """
    with database.reading() as session:
        here = experiments.find(session, experiment_id, principal.sees)
        if REPRODUCES not in here.provenance:
            raise NotFoundError(f"{here.id} was not made to repeat another; POST /v1/experiments/{here.id}/reproduce repeats it")
        original = experiments.find(session, here.provenance[REPRODUCES], principal.sees)
        return repetition(session, here, original)


def _made_from(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the provenance of an original says of its repetition; of one that was imported, the preset that it followed there."""
    if imports.IMPORTED not in provenance:
        return dict(provenance)
    origin = imports.origin(provenance)
    return {name: origin[name] for name in imports.FOLLOWED if name in origin}


def _finished(database: Database, principal: Principal, experiment_id: str) -> ExperimentRecord:
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
    if record.status is not Status.SUCCEEDED:
        raise ConflictError(f"{record.id} is {record.status}: what can be repeated has succeeded")
    return record
