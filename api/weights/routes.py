"""`/v1/weights`: upload, list, read and delete pretrained weights."""

from pathlib import Path
from typing import BinaryIO

from anyio import to_thread
from fastapi import APIRouter, Response

from api.http.audit_trail import Audit
from api.http.authentication import Submitter
from api.http.dependencies import AppState, AppStateDep, created
from api.http.problems import describe_errors
from api.uploads import Received, add_routes, digest_in_path, store_upload, upload_body
from fedcore.platform.access import Principal
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.tables import WeightsRecord
from fedcore.platform.store.weights import WEIGHTS
from fedcore.platform.uploads.weights import inspect
from fedq.schemas import Page, Weights

router = APIRouter(prefix="/v1/weights", tags=["weights"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Weights, "description": "The weights already exist."},
        **created("weights"),
        **describe_errors(413, 415, 422),
    },
    openapi_extra=upload_body("A safetensors file, or the config.json or tokenizer.json of a network."),
    summary="Upload pretrained weights",
)
async def upload_weights(
    principal: Submitter, facts: Audit, file: Received, state: AppStateDep, response: Response
) -> Weights:
    """Check and store a safetensors file, to be used as `problem.model.weights: sha256:...`, or the
    `config.json` or `tokenizer.json` of a network, for `problem.model.configuration` or
    `problem.dataset.tokenizer`.

    The body is the file itself. Names and shapes of the tensors are compared with the network when
    a run starts. Weights are deleted with the last experiment that uses them, or after a day if
    none does. Uploading the same content again returns 200.
    """
    record, made = await to_thread.run_sync(_keep, file, principal, facts, state, limiter=state.upload_gate)
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"{router.prefix}/{record.digest}"
    return Weights.model_validate(record)


add_routes(
    router,
    WEIGHTS,
    "/{weights_digest}",
    digest_in_path("weights_digest"),
    Weights.model_validate,
    Weights,
    Page[Weights],
    operation="weights",
    listing="read_weights_page",
    facts_read="their content, tensors and size",
    on_sharing="Experiments that were submitted before access was taken back go on, but cannot be extended;"
    " for later ones the digest is that of a file of the workers. While weights are shared, they are not"
    " deleted with the last experiment that uses them.",
    on_deletion="409 while an experiment of yours uses them.",
)


def _keep(
    file: BinaryIO, principal: Principal, facts: AuditFacts, state: AppState
) -> tuple[WeightsRecord, bool]:
    """Check the upload in `file` and store it; also returns whether it is new.

    Raises UploadError and QuotaError.
    """
    path = Path(file.name)
    found = inspect(path)
    return store_upload(
        WEIGHTS,
        path,
        found.digest,
        principal,
        facts,
        state,
        content=found.content,
        tensors=found.tensors,
    )
