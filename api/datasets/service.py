"""Data sets: checked, stored and answered."""

import tempfile
from pathlib import Path
from typing import Annotated, BinaryIO

from fastapi import Query
from pydantic import AfterValidator

from api.http.dependencies import NO_NUL, AppState
from api.uploads import store_upload, upload_folder
from fedcore.block import refuse_blank
from fedcore.data.description import UploadedContent
from fedcore.platform.access import Principal
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.datasets import DATASETS
from fedcore.platform.store.tables import DatasetRecord
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.sandbox import read_in_subprocess
from fedq.schemas import ClientSizes, Dataset

Name = Annotated[
    str,
    Query(
        min_length=1, max_length=200, pattern=NO_NUL, description="Display name.", examples=["our hospitals"]
    ),
    AfterValidator(refuse_blank),
]


def keep(
    file: BinaryIO,
    name: str,
    principal: Principal,
    facts: AuditFacts,
    state: AppState,
) -> tuple[DatasetRecord, bool]:
    """Check the upload in `file` and store its content; also returns whether it is a new data set.

    Raises UploadError and QuotaError.
    """
    with tempfile.TemporaryDirectory(dir=upload_folder(state.settings)) as folder:
        kept = Path(folder) / "kept.npz"
        content, client_sizes = read_in_subprocess(file, kept, UploadLimits(state.settings.upload_max_bytes))
        return store_upload(
            DATASETS,
            kept,
            content.digest,
            principal,
            facts,
            state,
            name=name,
            content=content.model_dump(mode="json"),
            client_sizes=client_sizes or {},
        )


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
