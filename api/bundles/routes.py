"""`/v1/bundles`: send, list, read, download and delete code bundles."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Response

from api.access import EDIT_ACCESS, READ_ACCESS, access_answer, change_access
from api.bundles.service import MEDIA_TYPE, archive_of, keep, receive
from api.datasets.service import upload_body
from api.http.audit_trail import Audit
from api.http.authentication import Reader, Sender, Submitter
from api.http.dependencies import AppStateDep, Cursor, DatabaseDep, created
from api.http.documents import Document
from api.http.parameters import NextLink
from api.http.problems import responses
from api.stored_uploads import UploadDigest, UploadLimit
from fedcore.platform.store import audit, bundles
from fedq.schemas import Bundle, BundlePage, SharedAccess

router = APIRouter(prefix="/v1/bundles", tags=["code bundles"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Bundle, "description": "The bundle already exists."},
        **created("bundle"),
        **responses(413, 422),
    },
    openapi_extra=upload_body("A bundle as `fedcore.bundles.pack` writes it."),
    summary="Send a code bundle",
)
async def send_bundle(
    principal: Sender,
    facts: Audit,
    archive: Annotated[bytes, Depends(receive)],
    state: AppStateDep,
    response: Response,
) -> Bundle:
    """Check and store the files of a folder with your own components, to be used as
    `code: sha256:...` of a specification.

    The body is an archive written by `fedcore.bundles.pack(folder)`; `fedq submit --code FOLDER`
    and `client.submit(..., code=FOLDER)` send it for you. Requires a key of scope `code`. The code
    runs in a confined process without credentials. A bundle is deleted with the last experiment
    that uses it, or after a day if none does. Sending the same content again returns 200.
    """
    record, made = await to_thread.run_sync(keep, archive, principal, facts, state, limiter=state.code_gate)
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"{router.prefix}/{record.digest}"
    return Bundle.model_validate(record)


@router.get("", responses=responses(422), summary="List code bundles")
def read_bundles(
    principal: Reader, database: DatabaseDep, link: NextLink, limit: UploadLimit = 50, cursor: Cursor = None
) -> BundlePage:
    """Return code bundles, newest first; your own and those that others share with you. Administrators see
    those of all owners.
    """
    with database.reading() as session:
        page = bundles.BUNDLES.page(session, principal.sees, limit=limit, cursor=cursor)
    return BundlePage(items=[Bundle.model_validate(record) for record in page.items], next=link(page.next))


@router.get("/{bundle_digest}", responses=responses(404, 422), summary="Read a code bundle")
def read_bundle(principal: Reader, bundle_digest: UploadDigest, database: DatabaseDep) -> Bundle:
    """Return a code bundle with its files and components."""
    with database.reading() as session:
        record = bundles.BUNDLES.find(session, bundle_digest, principal.sees, principal.owner)
        return Bundle.model_validate(record)


@router.get(
    "/{bundle_digest}/content",
    responses={
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        **responses(404, 422),
    },
    response_class=Response,
    summary="Download a code bundle",
)
def download_bundle(principal: Reader, bundle_digest: UploadDigest, state: AppStateDep) -> Response:
    """Return the archive, a tar file."""
    with state.database.reading() as session:
        record = bundles.BUNDLES.find(session, bundle_digest, principal.sees, principal.owner)
    name = f"{bundle_digest.removeprefix('sha256:')[:12]}.tar"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(archive_of(record, state), media_type=MEDIA_TYPE, headers=headers)


@router.get("/{bundle_digest}/access", **READ_ACCESS)
def read_bundle_access(principal: Reader, bundle_digest: UploadDigest, database: DatabaseDep) -> SharedAccess:
    """Return the owner of a code bundle and the users with whom it is shared."""
    with database.reading() as session:
        record = bundles.BUNDLES.find(session, bundle_digest, principal.sees, principal.owner)
        return access_answer(session, record)


@router.patch("/{bundle_digest}/access", **EDIT_ACCESS)
def edit_bundle_access(
    principal: Submitter, bundle_digest: UploadDigest, document: Document, database: DatabaseDep, facts: Audit
) -> SharedAccess:
    """Let other users of the service read a code bundle of yours and use it in experiments, or take that
    back.

    A user is the owner of valid API keys; to use a bundle, a key of scope `code` is required.
    Experiments that were submitted before access was taken back go on; those submitted, reproduced
    or extended after it are refused. While a bundle is shared, it is not deleted with the last
    experiment that uses it.
    """
    with database.transaction() as session:
        record = bundles.BUNDLES.find(session, bundle_digest, principal.sees, principal.owner)
        return change_access(session, record, principal.sees, document, facts, bundle_digest)


@router.delete(
    "/{bundle_digest}", status_code=204, responses=responses(404, 409, 422), summary="Delete a code bundle"
)
def delete_bundle(
    principal: Submitter, bundle_digest: UploadDigest, database: DatabaseDep, facts: Audit
) -> None:
    """Remove a code bundle of yours, and its file soon after; 409 while an experiment of yours uses it.

    Runs of other users, with whom it is shared, fail when they next load it.
    """
    with database.transaction() as session:
        bundles.BUNDLES.delete(session, bundle_digest, principal.sees, principal.owner)
        audit.record(session, facts, bundle_digest)
