"""Calls for data sets, presets, catalogue, queues, workers, keys, audit log and webhooks; all calls
together.
"""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from fedq.client.bodies import UPLOAD_TIMEOUT_S, Pieces, Upload, dataset_name, file_of
from fedq.client.calls.experiments import BUNDLES, JSON, Calls
from fedq.client.calls.results import ExportCalls
from fedq.client.errors import NotFoundError
from fedq.client.transport import EXPERIMENTS, RequestPath, given
from fedq.schemas import (
    AuditEntry,
    AuditPage,
    Bundle,
    Catalog,
    Dataset,
    DatasetPage,
    Delivery,
    Key,
    KeyEdit,
    KeyPage,
    KeyRequest,
    KeyStanding,
    Me,
    NewKey,
    NewWebhook,
    Preset,
    PresetList,
    PresetSummary,
    Queues,
    SharedAccess,
    Webhook,
    WebhookPage,
    Weights,
    WeightsPage,
    Worker,
    Workers,
)

DATASETS = "/v1/datasets"
WEIGHTS = "/v1/weights"


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
        params = {"name": name or dataset_name(data)}
        with file_of(data) as file:
            headers = given(
                **{"Content-Length": str(file.stat().st_size), "Idempotency-Key": idempotency_key}
            )
            return await self._transport.send(
                Dataset,
                "POST",
                DATASETS,
                content=Pieces(file),
                headers=headers,
                params=params,
                timeout=UPLOAD_TIMEOUT_S,
                repeatable=True,
            )

    async def dataset(self, id: str) -> Dataset:
        """Return a data set with its shape, classes and client sizes."""
        return await self._transport.read(Dataset, (DATASETS, id))

    def datasets(self) -> AsyncGenerator[Dataset, None]:
        """Iterate over the data sets, newest first; your own and those that others share with you."""
        return self._transport.walk(DatasetPage, DATASETS)

    async def delete_dataset(self, id: str) -> None:
        """Delete a data set; ConflictError while an unfinished experiment of yours uses it."""
        await self._transport.remove((DATASETS, await self._id(DATASETS, id)))


class WeightsCalls(Calls):
    """Upload, read and delete pretrained weights."""

    async def upload_weights(self, file: Path | str) -> Weights:
        """Upload a safetensors file, for use as `problem.model.weights: sha256:...`, or the `config.json`
        or `tokenizer.json` of a network, for `problem.model.configuration` or
        `problem.dataset.tokenizer`.

        Uploading the same content again returns the existing weights. Raises UnreadableDataError if
        there is no such file.
        """
        with file_of(file) as found:
            return await self._transport.send(
                Weights,
                "POST",
                WEIGHTS,
                content=Pieces(found),
                headers={"Content-Length": str(found.stat().st_size)},
                timeout=UPLOAD_TIMEOUT_S,
                repeatable=True,
            )

    async def weights(self, digest: str) -> Weights:
        """Return the facts of uploaded weights."""
        return await self._transport.read(Weights, (WEIGHTS, digest))

    def all_weights(self) -> AsyncGenerator[Weights, None]:
        """Iterate over the uploaded weights, newest first."""
        return self._transport.walk(WeightsPage, WEIGHTS)

    async def delete_weights(self, digest: str) -> None:
        """Delete uploaded weights; ConflictError while an experiment of yours uses them."""
        await self._transport.remove((WEIGHTS, digest))


class SharingCalls(Calls):
    """Share experiments, data sets, code bundles and weights with other users."""

    async def access(self, id: str) -> SharedAccess:
        """Return the users who have access to an experiment, a data set (by its id), a code bundle or
        weights (by their digest).
        """
        return await self._transport.read(SharedAccess, await self._access_path(id))

    async def share(
        self, id: str, *, read: Sequence[str] | None = None, write: Sequence[str] | None = None
    ) -> SharedAccess:
        """Replace the users who may read an experiment of yours, and those who may also edit, control
        and extend it; or the users who may `read` and use a data set (by its id), a code bundle or
        weights (by their digest).

        Users are the owners of valid API keys; InvalidRequestError for a name that is none. An empty
        list takes the access back: experiments that others have submitted go on.
        """
        changes = given(read=read, write=write)
        path = await self._access_path(id)
        return await self._transport.send(SharedAccess, "PATCH", path, json=changes, repeatable=True)

    async def _access_path(self, id: str) -> RequestPath:
        collection = DATASETS if id.startswith("set_") else EXPERIMENTS
        if id.startswith("sha256:"):
            # A digest does not say what it is of.
            collection = BUNDLES
            try:
                await self._transport.read(Bundle, (BUNDLES, id))
            except NotFoundError:
                collection = WEIGHTS
        return (collection, id, "access")


PRESETS = "/v1/presets"


class OfferCalls(Calls):
    """Read presets, catalogue, queues and workers."""

    async def presets(self) -> list[PresetSummary]:
        """Return the presets."""
        return (await self._transport.read(PresetList, PRESETS)).items

    async def preset(self, name: str) -> Preset:
        """Return a preset with its specification."""
        return await self._transport.read(Preset, (PRESETS, name))

    async def catalogue(self) -> Catalog:
        """Return all components of a specification with JSON schemas."""
        return await self._transport.read(Catalog, "/v1/catalog")

    async def queues(self) -> Queues:
        """Return the number of unfinished runs by queue."""
        return await self._transport.read(Queues, "/v1/queue")

    async def workers(self) -> list[Worker]:
        """Return the active workers."""
        return (await self._transport.read(Workers, "/v1/workers")).items


KEYS = "/v1/keys"


class KeyCalls(Calls):
    """Create, read, edit and revoke API keys."""

    async def me(self) -> Me:
        """Return the key of this client with its scope and use of quotas."""
        return await self._transport.read(Me, "/v1/me")

    async def create_key(self, wanted: KeyRequest) -> NewKey:
        """Create an API key; its `key` is not shown again. For administrators."""
        return await self._transport.send(
            NewKey, "POST", KEYS, content=wanted.model_dump_json(), headers=JSON
        )

    def keys(self) -> AsyncGenerator[Key, None]:
        """Iterate over all keys, newest first. For administrators."""
        return self._transport.walk(KeyPage, KEYS)

    async def key(self, id: str) -> KeyStanding:
        """Return a key and its use of quotas. For administrators; `me` returns one's own key."""
        return await self._transport.read(KeyStanding, (KEYS, id))

    async def edit_key(self, id: str, changes: KeyEdit) -> Key:
        """Change the given fields; None removes an expiry date or a limit. For administrators."""
        content = changes.model_dump_json(exclude_unset=True)
        return await self._transport.send(Key, "PATCH", (KEYS, id), content=content, headers=JSON)

    async def revoke_key(self, id: str) -> Key:
        """Revoke a key. For administrators."""
        return await self._transport.send(Key, "POST", (KEYS, id, "revoke"), repeatable=True)

    def audit(
        self, *, owner: str | None = None, target: str | None = None
    ) -> AsyncGenerator[AuditEntry, None]:
        """Iterate over changes and refused attempts, newest first. For administrators."""
        return self._transport.walk(AuditPage, "/v1/audit", owner=owner, target=target)


WEBHOOKS = "/v1/webhooks"


class WebhookCalls(Calls):
    """Create, read, edit, test and delete webhooks."""

    async def create(
        self,
        url: str,
        events: Sequence[str] | None = None,
        *,
        name: str | None = None,
        experiment_id: str | None = None,
    ) -> NewWebhook:
        """Create a webhook that sends `events` (default: the final status of experiments) of all
        experiments or of one.

        The result contains the signing `secret`, which is not shown again.
        """
        wanted = given(url=url, events=events, name=name, experiment_id=experiment_id)
        return await self._transport.send(NewWebhook, "POST", WEBHOOKS, json=wanted)

    def list(self) -> AsyncGenerator[Webhook, None]:
        """Iterate over the webhooks, newest first."""
        return self._transport.walk(WebhookPage, WEBHOOKS)

    async def get(self, id: str) -> Webhook:
        """Return a webhook and its state."""
        return await self._transport.read(Webhook, (WEBHOOKS, id))

    async def edit(self, id: str, /, **changes: Any) -> Webhook:
        """Change the given fields of `url`, `events`, `name`, `experiment_id` and `enabled`."""
        return await self._transport.send(Webhook, "PATCH", (WEBHOOKS, id), json=changes)

    async def delete(self, id: str) -> None:
        """Delete a webhook. Pending deliveries are not sent."""
        await self._transport.remove((WEBHOOKS, await self._id(WEBHOOKS, id)))

    async def ping(self, id: str) -> Delivery:
        """Send a test event; its result becomes the `last_delivery` of the webhook."""
        return await self._transport.send(Delivery, "POST", (WEBHOOKS, id, "ping"))


class AllCalls(ExportCalls, DatasetCalls, WeightsCalls, SharingCalls, OfferCalls, KeyCalls):
    """Everything but webhooks, which have names of their own."""
