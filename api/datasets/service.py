"""Uploads: received on disk, checked, stored and recorded in the database."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

from fastapi import Depends, HTTPException, Query, Request
from pydantic import AfterValidator
from starlette.concurrency import run_in_threadpool

from api.http.authentication import Submitter
from api.http.dependencies import NO_NUL, AppState, AppStateDep, IdempotencyKey
from api.http.documents import pieces_within
from api.stored_uploads import create_row
from fedcore.block import refuse_blank
from fedcore.data.description import UploadedContent
from fedcore.platform.store import Session, audit, datasets, quotas
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.tables import DatasetRecord
from fedcore.platform.uploads import dataset_storage
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.sandbox import read_in_subprocess
from fedcore.settings import Settings
from fedq.schemas import ClientSizes, Dataset

Name = Annotated[
    str,
    Query(
        min_length=1, max_length=200, pattern=NO_NUL, description="Display name.", examples=["our hospitals"]
    ),
    AfterValidator(refuse_blank),
]

AT_ONCE = 2
"""Uploads of one key that a process receives or checks at a time; others wait, their bodies unread.
"""


def upload_body(description: str) -> dict[str, Any]:
    """OpenAPI description of a body that is a file."""
    binary = {"type": "string", "format": "binary", "description": description}
    return {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": binary}}}}


class Label(NamedTuple):
    """Owner, key and name of an upload."""

    owner: str
    key_id: str
    name: str
    idempotency_key: str | None


async def _label(principal: Submitter, name: Name, idempotency_key: IdempotencyKey = None) -> Label:
    return Label(principal.owner, principal.key_id, name, idempotency_key)


Labelled = Annotated[Label, Depends(_label)]


class UploadSlots:
    """Limit of concurrent uploads per key: before they are checked, no quota counts them.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._of_key: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, key_id: str) -> asyncio.Semaphore:
        """Return the slots of a key; they exist while a request holds or awaits one."""
        return self._of_key.setdefault(key_id, asyncio.Semaphore(AT_ONCE))


async def receive(request: Request, principal: Submitter, state: AppStateDep) -> AsyncIterator[BinaryIO]:
    """Yield the body as a temporary file, read once the key has a free slot."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise HTTPException(
            415, "The body must be the file itself (curl --data-binary @FILE), not a multipart form."
        )
    limit = state.settings.upload_max_bytes
    excess = f"The file exceeds {limit} bytes, the limit for uploads (FEDQ_UPLOAD_MAX_BYTES)."
    pieces = pieces_within(request, limit, excess)
    async with state.upload_slots.of(principal.key_id):
        with tempfile.TemporaryFile(dir=upload_folder(state.settings)) as file:
            async for piece in pieces:
                await run_in_threadpool(file.write, piece)
            yield file


Received = Annotated[BinaryIO, Depends(receive)]


def keep(file: BinaryIO, label: Label, facts: AuditFacts, state: AppState) -> tuple[DatasetRecord, bool]:
    """Check the upload in `file` and store its content; also returns whether it is a new data set.

    Raises UploadError, IdempotencyError and QuotaError.
    """
    with tempfile.TemporaryDirectory(dir=upload_folder(state.settings)) as folder:
        kept = Path(folder) / "kept.npz"
        content, client_sizes = read_in_subprocess(file, kept, UploadLimits(state.settings.upload_max_bytes))
        size_bytes = kept.stat().st_size
        with state.database.reading() as session:
            dataset_id = datasets.new_id(session)
        key = dataset_storage.storage_key(dataset_id, content.digest)
        state.storage.put_file(key, kept)

    def create(session: Session) -> DatasetRecord:
        record = datasets.create(
            session,
            dataset_id,
            content,
            name=label.name,
            client_sizes=client_sizes or {},
            size_bytes=size_bytes,
            owner=label.owner,
            idempotency_key=label.idempotency_key,
        )
        if record.id == dataset_id:
            quotas.charge(session, dataset_id, label.key_id)
        audit.record(session, facts, record.id)
        return record

    return create_row(state, dataset_id, key, create)


def upload_folder(settings: Settings) -> Path:
    """Return the folder of uploads while they are checked."""
    settings.uploads.mkdir(parents=True, exist_ok=True)
    return settings.uploads


def dataset_answer(record: DatasetRecord) -> Dataset:
    """Return a data set as answered."""
    return Dataset(
        id=record.id,
        name=record.name,
        owner=record.owner,
        client_sizes=ClientSizes(**record.client_sizes) if record.client_sizes else None,
        size_bytes=record.size_bytes,
        created_at=record.created_at,
        **UploadedContent.model_validate(record.content).model_dump(mode="json"),
    )
