"""`/v1/weights`: upload, list, read and delete pretrained weights."""

import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from anyio import to_thread
from fastapi import APIRouter, Response

from api.access import EDIT_ACCESS, READ_ACCESS, access_answer, change_access
from api.datasets.service import Received, upload_body, upload_folder
from api.http.audit_trail import Audit
from api.http.authentication import Reader, Submitter
from api.http.dependencies import AppState, AppStateDep, Cursor, DatabaseDep, created
from api.http.documents import Document
from api.http.parameters import NextLink
from api.http.problems import responses
from api.stored_uploads import UploadDigest, UploadLimit, create_row
from fedcore.platform.access import Principal
from fedcore.platform.store import Session, audit, quotas
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.tables import WeightsRecord
from fedcore.platform.store.weights import WEIGHTS
from fedcore.platform.uploads.weights import inspect, storage_key
from fedq.schemas import SharedAccess, Weights, WeightsPage

router = APIRouter(prefix="/v1/weights", tags=["weights"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Weights, "description": "The weights already exist."},
        **created("weights"),
        **responses(413, 415, 422),
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


@router.get("", responses=responses(422), summary="List pretrained weights")
def read_weights_page(
    principal: Reader, database: DatabaseDep, link: NextLink, limit: UploadLimit = 50, cursor: Cursor = None
) -> WeightsPage:
    """Return uploaded weights, newest first; your own and those that others share with you.
    Administrators see those of all owners.
    """
    with database.reading() as session:
        page = WEIGHTS.page(session, principal.sees, limit=limit, cursor=cursor)
    return WeightsPage(items=[Weights.model_validate(record) for record in page.items], next=link(page.next))


@router.get("/{weights_digest}", responses=responses(404, 422), summary="Read pretrained weights")
def read_weights(principal: Reader, weights_digest: UploadDigest, database: DatabaseDep) -> Weights:
    """Return the facts of uploaded weights."""
    with database.reading() as session:
        record = WEIGHTS.find(session, weights_digest, principal.sees, principal.owner)
        return Weights.model_validate(record)


@router.get("/{weights_digest}/access", **READ_ACCESS)
def read_weights_access(
    principal: Reader, weights_digest: UploadDigest, database: DatabaseDep
) -> SharedAccess:
    """Return the owner of pretrained weights and the users with whom they are shared."""
    with database.reading() as session:
        record = WEIGHTS.find(session, weights_digest, principal.sees, principal.owner)
        return access_answer(session, record)


@router.patch("/{weights_digest}/access", **EDIT_ACCESS)
def edit_weights_access(
    principal: Submitter,
    weights_digest: UploadDigest,
    document: Document,
    database: DatabaseDep,
    facts: Audit,
) -> SharedAccess:
    """Let other users of the service use pretrained weights of yours in experiments, or take that back.

    A user is the owner of valid API keys. Experiments that were submitted before access was taken
    back go on, but cannot be extended; for later ones the digest is that of a file of the workers.
    While weights are shared, they are not deleted with the last experiment that uses them.
    """
    with database.transaction() as session:
        record = WEIGHTS.find(session, weights_digest, principal.sees, principal.owner)
        return change_access(session, record, principal.sees, document, facts, weights_digest)


@router.delete(
    "/{weights_digest}",
    status_code=204,
    responses=responses(404, 409, 422),
    summary="Delete pretrained weights",
)
def delete_weights(
    principal: Submitter, weights_digest: UploadDigest, database: DatabaseDep, facts: Audit
) -> None:
    """Remove uploaded weights of yours, and their file soon after; 409 while an experiment of yours uses
    them.

    Runs of other users, with whom they are shared, fail when they next load them.
    """
    with database.transaction() as session:
        WEIGHTS.delete(session, weights_digest, principal.sees, principal.owner)
        audit.record(session, facts, weights_digest)


def _keep(
    file: BinaryIO, principal: Principal, facts: AuditFacts, state: AppState
) -> tuple[WeightsRecord, bool]:
    """Check the upload in `file` and store it; also returns whether it is new.

    Raises UploadError and QuotaError.
    """
    with tempfile.TemporaryDirectory(dir=upload_folder(state.settings)) as folder:
        kept = Path(folder) / "kept"
        file.seek(0)
        with kept.open("wb") as target:
            shutil.copyfileobj(file, target)
        found = inspect(kept)
        size_bytes = kept.stat().st_size
        with state.database.reading() as session:
            weights_id = WEIGHTS.new_id(session)
        key = storage_key(weights_id, found.digest)
        state.storage.put_file(key, kept)

    def create(session: Session) -> WeightsRecord:
        record = WEIGHTS.create(
            session,
            weights_id,
            found.digest,
            owner=principal.owner,
            key_id=principal.key_id,
            content=found.content,
            tensors=found.tensors,
            size_bytes=size_bytes,
        )
        if record.id == weights_id:
            quotas.check_stored(session, principal.key_id)
        audit.record(session, facts, record.digest)
        return record

    return create_row(state, weights_id, key, create)
