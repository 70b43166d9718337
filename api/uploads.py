"""Uploads of users: data sets, code bundles and files of pretrained networks. All are received, stored,
listed, read, shared and deleted alike; the resources add what they accept, check and answer.
"""

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, cast

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi import Path as PathParameter
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.access import EDIT_ACCESS, READ_ACCESS, access_answer, change_access
from api.http.audit_trail import Audit
from api.http.authentication import Reader, Submitter
from api.http.dependencies import AppState, AppStateDep, Cursor, DatabaseDep
from api.http.documents import Document, pieces_within
from api.http.parameters import NextLink
from api.http.problems import describe_errors
from fedcore.data.digest_files import Digest
from fedcore.platform.access import Principal
from fedcore.platform.store import audit, quotas
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.tables import UploadRecord
from fedcore.platform.store.uploads import Uploads
from fedcore.settings import Settings
from fedq.schemas import SharedAccess

R = TypeVar("R", bound=UploadRecord)
A = TypeVar("A", bound=BaseModel)
UploadLimit = Annotated[int, Query(ge=1, le=200, description="Maximum number of uploads per page.")]


def upload_body(description: str) -> dict[str, Any]:
    """OpenAPI description of a body that is a file."""
    binary = {"type": "string", "format": "binary", "description": description}
    return {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": binary}}}}


async def _receive(request: Request, principal: Submitter, state: AppStateDep) -> AsyncIterator[BinaryIO]:
    """Yield the body as a temporary file, read once the key has a free slot."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise HTTPException(
            415, "The body must be the file itself (curl --data-binary @FILE), not a multipart form."
        )
    limit = state.settings.upload_max_bytes
    excess = f"The file exceeds {limit} bytes, the limit for uploads (FEDQ_UPLOAD_MAX_BYTES)."
    pieces = pieces_within(request, limit, excess)
    async with state.upload_slots.of(principal.key_id):
        with tempfile.NamedTemporaryFile(dir=upload_folder(state.settings)) as file:
            async for piece in pieces:
                await run_in_threadpool(file.write, piece)
            file.flush()
            yield cast("BinaryIO", file)


Received = Annotated[BinaryIO, Depends(_receive)]


def upload_folder(settings: Settings) -> Path:
    """Return the folder of uploads while they are checked."""
    settings.uploads.mkdir(parents=True, exist_ok=True)
    return settings.uploads


def store_upload(
    uploads: Uploads[R],
    content: bytes | Path,
    digest: str,
    principal: Principal,
    facts: AuditFacts,
    state: AppState,
    /,
    **columns: Any,
) -> tuple[R, bool]:
    """Store the checked content of an upload, then its record, or find the one of the same content; also
    returns whether it is new.

    `columns` are further columns of its kind. The file is removed again unless the record is new.
    Raises QuotaError.
    """
    with state.database.reading() as session:
        upload_id = uploads.new_id(session)
    key = uploads.storage_key(upload_id, digest)
    if isinstance(content, Path):
        size_bytes = content.stat().st_size
        state.storage.put_file(key, content)
    else:
        size_bytes = len(content)
        state.storage.put(key, content)
    kept_id = None
    try:
        with state.database.transaction() as session:
            made_by = {"owner": principal.owner, "key_id": principal.key_id}
            record = uploads.create(session, upload_id, digest, size_bytes=size_bytes, **made_by, **columns)
            if record.id == upload_id:
                quotas.check_stored(session, principal.key_id)
            audit.record(session, facts, uploads.name_of(record))
            # Before the commit: if the connection breaks then, it may have gone through, and the
            # record needs its file.
            kept_id = record.id
    finally:
        if kept_id != upload_id:
            state.storage.delete(key)
    return record, kept_id == upload_id


def digest_in_path(parameter: str) -> Any:
    """Return the dependency that reads the digest of an upload from a path."""

    async def read(
        digest: Annotated[
            Digest,
            PathParameter(
                alias=parameter,
                description="Digest by which specifications name the upload.",
                examples=["sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"],
            ),
        ],
    ) -> str:
        return digest

    return Depends(read)


def add_routes(  # noqa: PLR0913 - what differs between kinds
    router: APIRouter,
    uploads: Uploads[R],
    path: str,
    name_in_path: Any,
    answer: Callable[[R], A],
    model: type[A],
    page_model: type[BaseModel],
    *,
    operation: str,
    listing: str,
    facts_read: str,
    on_sharing: str,
    on_deletion: str,
) -> None:
    """Add the endpoints that list, read, share and delete uploads of one kind.

    `path` is that of one, with a parameter that the dependency `name_in_path` reads. `operation` is the
    kind in the names of operations, and `listing` the name of the one that lists. The other texts end
    descriptions.
    """
    is_plural = uploads.noun.endswith("s")
    one = uploads.noun if is_plural else f"a {uploads.noun}"
    many = uploads.noun if is_plural else f"{uploads.noun}s"

    @router.get(
        "",
        name=listing,
        response_model=page_model,
        responses=describe_errors(422),
        summary=f"List {many}",
        description=f"Return {many}, newest first; your own and {many} that others share with you."
        f" Administrators see the {many} of all owners.",
    )
    def read_page(
        principal: Reader,
        database: DatabaseDep,
        link: NextLink,
        limit: UploadLimit = 50,
        cursor: Cursor = None,
    ) -> BaseModel:
        with database.reading() as session:
            page = uploads.page(session, principal.sees, limit=limit, cursor=cursor)
        return page_model(items=[answer(record) for record in page.items], next=link(page.next))

    @router.get(
        path,
        name=f"read_{operation}",
        response_model=model,
        responses=describe_errors(404, 422),
        summary=f"Read {one}",
        description=f"Return {one} with {facts_read}.",
    )
    def read_one(principal: Reader, database: DatabaseDep, name: str = name_in_path) -> A:
        with database.reading() as session:
            return answer(uploads.find(session, name, principal.sees, principal.owner))

    @router.get(
        f"{path}/access",
        name=f"read_{operation}_access",
        description=f"Return the owner of {one}, and the other users who have access.",
        **READ_ACCESS,
    )
    def read_access(principal: Reader, database: DatabaseDep, name: str = name_in_path) -> SharedAccess:
        with database.reading() as session:
            return access_answer(session, uploads.find(session, name, principal.sees, principal.owner))

    @router.patch(
        f"{path}/access",
        name=f"edit_{operation}_access",
        description=f"Let other users of the service read {one} of yours, and use that in experiments, or"
        f" take the access back.\n\nA user is the owner of valid API keys. {on_sharing}",
        **EDIT_ACCESS,
    )
    def edit_access(
        principal: Submitter,
        document: Document,
        database: DatabaseDep,
        facts: Audit,
        name: str = name_in_path,
    ) -> SharedAccess:
        with database.transaction() as session:
            record = uploads.find(session, name, principal.sees, principal.owner)
            return change_access(session, record, principal.sees, document, facts, name)

    @router.delete(
        path,
        name=f"delete_{operation}",
        status_code=204,
        responses=describe_errors(404, 409, 422),
        summary=f"Delete {one}",
        description=f"Remove {one} of yours, and the file soon after; {on_deletion}\n\nRuns of other users"
        " who have access fail when they next load the file.",
    )
    def delete(principal: Submitter, database: DatabaseDep, facts: Audit, name: str = name_in_path) -> None:
        with database.transaction() as session:
            uploads.delete(session, name, principal.sees, principal.owner)
            audit.record(session, facts, name)
