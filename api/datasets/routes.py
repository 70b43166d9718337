"""`/v1/datasets`: upload, list, read and delete data sets."""

from anyio import to_thread
from fastapi import APIRouter, Response

from api.access import EDIT_ACCESS, READ_ACCESS, access_answer, change_access
from api.datasets.service import Labelled, Received, dataset_answer, keep, upload_body
from api.http.audit_trail import Audit
from api.http.authentication import Reader, Submitter
from api.http.dependencies import REPLAYED, AppStateDep, Cursor, DatabaseDep, DatasetId, created
from api.http.documents import Document
from api.http.parameters import NextLink
from api.http.problems import responses
from api.stored_uploads import UploadLimit
from fedcore.platform.store import audit, datasets
from fedq.schemas import Dataset, DatasetPage, SharedAccess

router = APIRouter(prefix="/v1/datasets", tags=["data sets"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Dataset, "description": "The content already exists under this id and name."},
        **created("data set"),
        **responses(413, 415, 422),
    },
    openapi_extra=upload_body("An NPZ or Parquet file."),
    summary="Upload a data set",
)
async def upload_dataset(
    label: Labelled,
    facts: Audit,
    file: Received,
    state: AppStateDep,
    response: Response,
) -> Dataset:
    """Validate and store a data set, to be used as `problem.dataset: {kind: uploaded, id: ...}`.

    The body is the file itself.

    **NPZ** (`numpy.savez`, `savez_compressed`) with the arrays `features` [n, ...], `label` [n]
    and, optionally, `client` [n] and `test` [n]. **Parquet** with one numeric column per feature,
    or a column `features` of fixed-size lists (nested for images), and columns `label`, `client`
    and `test`. The format is detected from the content.

    - `features`: finite numbers, used unchanged. Images for a CNN have the shape [n, channels,
      height, width].
    - `label`: integers 0..C-1, each of which occurs, or floats for regression with the model
      `linear`.
    - `client`: id of the client that holds the sample, an integer or a string of at most 200
      characters. Clients are numbered in the order of their ids. Each needs at least one training
      sample. Without `client`, the data need a `problem.partition`.
    - `test`: true for test samples. Each also belongs to its `client`, on which figures of clients
      are taken. Without test samples, results have no test loss and accuracy.

    The answer's `description` contains the names and counts of what was read. Empty cells, and the
    index of a pandas table among the columns, are refused.

    Uploading the same content again returns 200 with the existing id and name.
    """
    record, made = await to_thread.run_sync(keep, file, label, facts, state, limiter=state.upload_gate)
    response.status_code = 201 if made else 200
    if label.idempotency_key and not made:
        response.headers.update(REPLAYED)
    response.headers["Location"] = f"{router.prefix}/{record.id}"
    return dataset_answer(record)


@router.get("", responses=responses(422), summary="List data sets")
def read_datasets(
    principal: Reader, database: DatabaseDep, link: NextLink, limit: UploadLimit = 50, cursor: Cursor = None
) -> DatasetPage:
    """Return data sets, newest first; your own and those that others share with you. Administrators
    see those of all owners.
    """
    with database.reading() as session:
        page = datasets.page(session, principal.sees, limit=limit, cursor=cursor)
    return DatasetPage(items=[dataset_answer(record) for record in page.items], next=link(page.next))


@router.get("/{dataset_id}", responses=responses(404, 422), summary="Read a data set")
def read_dataset(principal: Reader, dataset_id: DatasetId, database: DatabaseDep) -> Dataset:
    """Return a data set with its shape, classes and client sizes."""
    with database.reading() as session:
        return dataset_answer(datasets.find(session, dataset_id, principal.sees))


@router.get("/{dataset_id}/access", **READ_ACCESS)
def read_dataset_access(principal: Reader, dataset_id: DatasetId, database: DatabaseDep) -> SharedAccess:
    """Return the owner of a data set and the users with whom it is shared."""
    with database.reading() as session:
        return access_answer(session, datasets.find(session, dataset_id, principal.sees))


@router.patch("/{dataset_id}/access", **EDIT_ACCESS)
def edit_dataset_access(
    principal: Submitter, dataset_id: DatasetId, document: Document, database: DatabaseDep, facts: Audit
) -> SharedAccess:
    """Let other users of the service read a data set of yours and train on it, or take that back.

    A user is the owner of valid API keys. Experiments that were submitted before access was taken
    back go on; those submitted, reproduced or extended after it are refused.
    """
    with database.transaction() as session:
        record = datasets.find(session, dataset_id, principal.sees)
        return change_access(session, record, principal.sees, document, facts, dataset_id)


@router.delete(
    "/{dataset_id}", status_code=204, responses=responses(404, 409, 422), summary="Delete a data set"
)
def delete_dataset(principal: Submitter, dataset_id: DatasetId, database: DatabaseDep, facts: Audit) -> None:
    """Remove a data set of yours, and its file soon after; 409 while an unfinished experiment of yours
    trains on it. Runs of other users, with whom it is shared, fail when they next load it.

    Finished ones keep their results, but cannot be retried.
    """
    with database.transaction() as session:
        datasets.delete(session, dataset_id, principal.sees)
        audit.record(session, facts, dataset_id)
