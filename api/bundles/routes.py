"""`/v1/bundles`: send, list, read, download and delete code bundles."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Response

from api.bundles.service import MEDIA_TYPE, archive_of, keep, receive
from api.http.audit_trail import Audit
from api.http.authentication import Reader, Sender
from api.http.dependencies import AppStateDep, created
from api.http.problems import describe_errors
from api.uploads import add_routes, digest_in_path, upload_body
from fedcore.platform.store import bundles
from fedq.schemas import Bundle, Page

router = APIRouter(prefix="/v1/bundles", tags=["code bundles"])
BUNDLE_DIGEST = digest_in_path("bundle_digest")


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Bundle, "description": "The bundle already exists."},
        **created("bundle"),
        **describe_errors(413, 422),
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


@router.get(
    "/{bundle_digest}/content",
    responses={
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        **describe_errors(404, 422),
    },
    response_class=Response,
    summary="Download a code bundle",
)
def download_bundle(principal: Reader, state: AppStateDep, digest: str = BUNDLE_DIGEST) -> Response:
    """Return the archive, a tar file."""
    with state.database.reading() as session:
        record = bundles.BUNDLES.find(session, digest, principal.sees, principal.owner)
    name = f"{digest.removeprefix('sha256:')[:12]}.tar"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(archive_of(record, state), media_type=MEDIA_TYPE, headers=headers)


add_routes(
    router,
    bundles.BUNDLES,
    "/{bundle_digest}",
    BUNDLE_DIGEST,
    Bundle.model_validate,
    Bundle,
    Page[Bundle],
    operation="bundle",
    listing="read_bundles",
    facts_read="its files and components",
    on_sharing="To use a bundle, a key of scope `code` is required. Experiments that were submitted before"
    " access was taken back go on; those submitted, reproduced or extended after it are refused. While a"
    " bundle is shared, it is not deleted with the last experiment that uses it.",
    on_deletion="409 while an experiment of yours uses it.",
)
