"""`/v1/datasets`: upload, list, read and delete data sets."""

from anyio import to_thread
from fastapi import APIRouter, Response

from api.datasets.service import Name, dataset_answer, keep
from api.http.audit_trail import Audit
from api.http.authentication import Submitter
from api.http.dependencies import DATASET_ID, AppStateDep, created
from api.http.problems import describe_errors
from api.uploads import Received, add_routes, upload_body
from fedcore.platform.store import datasets
from fedq.schemas import Dataset, Page

router = APIRouter(prefix="/v1/datasets", tags=["data sets"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Dataset, "description": "The content already exists under this id and name."},
        **created("data set"),
        **describe_errors(413, 415, 422),
    },
    openapi_extra=upload_body("An NPZ or Parquet file."),
    summary="Upload a data set",
)
async def upload_dataset(
    principal: Submitter,
    name: Name,
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
    record, made = await to_thread.run_sync(
        keep, file, name, principal, facts, state, limiter=state.upload_gate
    )
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"{router.prefix}/{record.id}"
    return dataset_answer(record)


add_routes(
    router,
    datasets.DATASETS,
    "/{dataset_id}",
    DATASET_ID,
    dataset_answer,
    Dataset,
    Page[Dataset],
    operation="dataset",
    listing="read_datasets",
    facts_read="its shape, classes and client sizes",
    on_sharing="Experiments that were submitted before access was taken back go on; those submitted,"
    " reproduced or extended after it are refused.",
    on_deletion="409 while an unfinished experiment of yours trains on it. Finished ones keep their"
    " results, but cannot be retried.",
)
