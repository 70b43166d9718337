"""Calls for uploaded data sets."""

from collections.abc import AsyncGenerator

from fedq.client.calls.base import Calls
from fedq.client.transport import given, walk
from fedq.client.uploads import TIMEOUT_S, Pieces, Upload, file_of, name_of
from fedq.schemas import Dataset, DatasetPage

DATASETS = "/v1/datasets"


class DatasetCalls(Calls):
    """Upload, read and delete data sets."""

    async def upload(
        self, data: Upload, name: str | None = None, *, idempotency_key: str | None = None
    ) -> Dataset:
        """Upload an NPZ or Parquet file, or arrays by name, for use as
        `problem.dataset: {kind: uploaded, id: ...}`.

        The default `name` is that of the file. Uploading the same content again returns the
        existing data set. Raises UnreadableDataError if the data cannot be read.
        """
        params = {"name": name or name_of(data)}
        with file_of(data) as file:
            headers = given(
                **{"Content-Length": str(file.stat().st_size), "Idempotency-Key": idempotency_key}
            )
            options = {
                "content": Pieces(file),
                "headers": headers,
                "params": params,
                "timeout": TIMEOUT_S,
                "repeatable": True,
            }
            return await self._transport.send(Dataset, "POST", DATASETS, **options)

    async def dataset(self, id: str) -> Dataset:
        """Return a data set with its shape, classes and client sizes."""
        return await self._transport.read(Dataset, f"{DATASETS}/{id}")

    def datasets(self) -> AsyncGenerator[Dataset, None]:
        """Iterate over the data sets, newest first."""
        return walk(lambda cursor: self._transport.read(DatasetPage, DATASETS, cursor=cursor))

    async def delete_dataset(self, id: str) -> None:
        """Delete a data set; ConflictError while an unfinished experiment uses it."""
        await self._transport.remove(f"{DATASETS}/{id}")
