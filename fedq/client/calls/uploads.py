"""Calls for uploads: data sets, code bundles, and files of pretrained networks."""

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from fedcore import bundles
from fedcore.errors import ExtensionError
from fedq.client.bodies import UPLOAD_TIMEOUT_S, Pieces, Upload, dataset_name, file_of
from fedq.client.calls import Calls
from fedq.client.errors import UnreadableDataError
from fedq.client.transport import Model
from fedq.schemas import Bundle, Dataset, Page, Weights

DATASETS = "/v1/datasets"
BUNDLES = "/v1/bundles"
WEIGHTS = "/v1/weights"
CHECK_TIMEOUT_S = 300.0
"""The service loads a bundle before it answers, one at a time."""


class UploadCalls(Calls):
    """Send, read and delete uploads."""

    async def upload(self, data: Upload, name: str | None = None) -> Dataset:
        """Upload an NPZ or Parquet file, or arrays by name, for use as
        `problem.dataset: {kind: uploaded, id: ...}`.

        The default `name` is that of the file. Uploading the same content again returns the
        existing data set. Raises UnreadableDataError if the data cannot be read.
        """
        params = {"name": name or dataset_name(data)}
        with file_of(data) as file:
            return await self._upload(Dataset, DATASETS, file, params=params)

    async def dataset(self, id: str) -> Dataset:
        """Return a data set with its shape, classes and client sizes."""
        return await self._transport.read(Dataset, (DATASETS, id))

    def datasets(self) -> AsyncGenerator[Dataset, None]:
        """Iterate over the data sets, newest first; your own and the ones that others share with you."""
        return self._transport.walk(Page[Dataset], DATASETS)

    async def delete_dataset(self, id: str) -> None:
        """Delete a data set; ConflictError while an unfinished experiment of yours uses it."""
        await self._transport.remove((DATASETS, await self._id(DATASETS, id)))

    async def send_bundle(self, folder: Path | str) -> Bundle:
        """Send a folder with your own components as a code bundle.

        Sending the same content again returns the same bundle. Raises UnreadableDataError if the
        folder cannot be sent.
        """
        try:
            archive = bundles.pack(Path(folder))
        except (ExtensionError, OSError) as error:
            raise UnreadableDataError(f"{folder} cannot be sent: {error}") from error
        return await self._upload(Bundle, BUNDLES, archive, timeout=CHECK_TIMEOUT_S)

    async def bundle(self, digest: str) -> Bundle:
        """Return a code bundle with its files and components."""
        return await self._transport.read(Bundle, (BUNDLES, digest))

    async def download_bundle(self, digest: str, path: Path) -> Path:
        """Write a code bundle, a tar file, to `path`."""
        return await self._transport.download((BUNDLES, digest, "content"), path)

    def bundles(self) -> AsyncGenerator[Bundle, None]:
        """Iterate over the code bundles, newest first."""
        return self._transport.walk(Page[Bundle], BUNDLES)

    async def delete_bundle(self, digest: str) -> None:
        """Delete a code bundle; ConflictError while an experiment of yours uses it."""
        await self._transport.remove((BUNDLES, digest))

    async def upload_weights(self, file: Path | str) -> Weights:
        """Upload a safetensors file, for use as `problem.model.weights: sha256:...`, or the `config.json`
        or `tokenizer.json` of a network, for `problem.model.configuration` or
        `problem.dataset.tokenizer`.

        Uploading the same content again returns the existing weights. Raises UnreadableDataError if
        there is no such file.
        """
        with file_of(file) as found:
            return await self._upload(Weights, WEIGHTS, found)

    async def weights(self, digest: str) -> Weights:
        """Return the facts of uploaded weights."""
        return await self._transport.read(Weights, (WEIGHTS, digest))

    def all_weights(self) -> AsyncGenerator[Weights, None]:
        """Iterate over the uploaded weights, newest first."""
        return self._transport.walk(Page[Weights], WEIGHTS)

    async def delete_weights(self, digest: str) -> None:
        """Delete uploaded weights; ConflictError while an experiment of yours uses them."""
        await self._transport.remove((WEIGHTS, digest))

    async def _upload(
        self,
        model: type[Model],
        collection: str,
        content: Path | bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = UPLOAD_TIMEOUT_S,
        **options: Any,
    ) -> Model:
        sent = {"Content-Type": "application/octet-stream", **(headers or {})}
        if isinstance(content, Path):
            sent["Content-Length"] = str(content.stat().st_size)
        body = Pieces(content) if isinstance(content, Path) else content
        options |= {"content": body, "headers": sent, "timeout": timeout, "repeatable": True}
        return await self._transport.send(model, "POST", collection, **options)
