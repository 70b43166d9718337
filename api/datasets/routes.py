"""`/v1/datasets`: users' own data, uploaded, listed, read, deleted."""

from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request, Response

from api.datasets.service import BODY, Labelled, Received, dataset_answer, keep
from api.http.audit_trail import Note
from api.http.authentication import Reader, Submitter
from api.http.dependencies import Configuration, Cursor, DatasetId, Files, Store
from api.http.problems import responses
from api.http.routing import Router
from fedcore.platform.store import datasets
from fedq.schemas import Dataset, DatasetPage

router = Router(prefix="/v1/datasets", tags=["data sets"])

Limit = Annotated[int, Query(ge=1, le=200, description="Data sets on a page, at most.")]


async def _gate(request: Request) -> CapacityLimiter:
    gate: CapacityLimiter = request.app.state.upload_gate
    return gate


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Dataset, "description": "The same content was there already, under this id and name."},
        201: {"headers": {"Location": {"description": "Where the data set is.", "schema": {"type": "string"}}}},
        **responses(413, 415, 422),
    },
    openapi_extra=BODY,
    summary="Upload a data set",
)
async def upload(
    label: Labelled,
    note: Note,
    file: Received,
    database: Store,
    storage: Files,
    settings: Configuration,
    gate: Annotated[CapacityLimiter, Depends(_gate)],
    response: Response,
) -> Dataset:
    """Check a data set and keep it, to be trained on as `problem.dataset: {kind: uploaded, id: ...}`. The body is the file itself.

    **NPZ** (`numpy.savez`, `savez_compressed`) with the arrays `features` [n, ...], `label` [n], and where there are, `client` [n] and
    `test` [n]. **Parquet** with a numeric column for each number of a sample, or a column `features` of fixed-size lists (nested for
    images), and columns `label`, `client` and `test`. The format is told by the content.

    - `features`: finite numbers, used as they are. Images for a CNN have the shape [n, channels, height, width].
    - `label`: integers 0..C-1, each of which occurs, or floats for regression by the model `linear`.
    - `client`: who holds the sample, by an integer or a text of at most 200 characters. Clients are numbered by the order of their
      ids. Each needs a sample to train on; one is enough. Without `client` the data come in one piece, and `problem.partition` divides it.
    - `test`: true for the samples to test the global model with. Without them test losses and accuracies are left out.

    The same content twice is the same data set: it is answered with 200, its id and its first name.
    """

    def work() -> tuple[Dataset, bool]:
        record, made = keep(file, label, note, database, storage, settings)
        return dataset_answer(record), made

    # One at a time: whoever checks it holds its arrays in memory.
    answer, made = await to_thread.run_sync(work, limiter=gate)
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"{router.prefix}/{answer.id}"
    return answer


@router.get("", responses=responses(422), summary="List data sets")
def read_datasets(principal: Reader, database: Store, limit: Limit = 50, cursor: Cursor = None) -> DatasetPage:
    """Newest first, a page at a time; of all owners for administrators."""
    with database.reading() as session:
        page = datasets.page(session, owner=principal.sees, limit=limit, cursor=cursor)
    return DatasetPage(items=[dataset_answer(record) for record in page.items], next=page.next)


@router.get("/{dataset_id}", responses=responses(404, 422), summary="Read a data set")
def read_dataset(principal: Reader, dataset_id: DatasetId, database: Store) -> Dataset:
    """One data set with its shape, classes, clients and their sizes."""
    with database.reading() as session:
        return dataset_answer(datasets.find(session, dataset_id, principal.sees))


@router.delete("/{dataset_id}", status_code=204, responses=responses(404, 409, 422), summary="Delete a data set")
def delete(principal: Submitter, dataset_id: DatasetId, database: Store, note: Note) -> None:
    """Remove a data set, and its file soon after; 409 while an unfinished experiment trains on it.

    Finished ones keep their results, but cannot be retried.
    """
    with database.transaction() as session:
        datasets.find(session, dataset_id, principal.sees)
        datasets.delete(session, dataset_id)
        note(session, dataset_id)
