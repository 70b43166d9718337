"""Files that come with their rows: stored first, and removed again if the row is not made; and the
parameters of their endpoints.
"""

from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar

from fastapi import Path, Query

from api.http.dependencies import AppState
from fedcore.data.digest_files import Digest
from fedcore.platform.store import Session


class _HasId(Protocol):
    id: str


R = TypeVar("R", bound=_HasId)

UploadLimit = Annotated[int, Query(ge=1, le=200, description="Maximum number of uploads per page.")]
UploadDigest = Annotated[
    Digest,
    Path(
        description="Digest by which specifications name the upload.",
        examples=["sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"],
    ),
]


def create_row(state: AppState, file_id: str, key: str, create: Callable[[Session], R]) -> tuple[R, bool]:
    """Create the row of a file that was just stored under `key`; also returns whether it is new.

    `create` returns the row `file_id`, or an older one of the same content. The file is deleted
    unless the row is new.
    """
    kept_id = None
    try:
        with state.database.transaction() as session:
            record = create(session)
            # Before the commit: if the connection breaks then, it may have gone through, and the
            # row needs its file.
            kept_id = record.id
    finally:
        if kept_id != file_id:
            state.storage.delete(key)
    return record, kept_id == file_id
