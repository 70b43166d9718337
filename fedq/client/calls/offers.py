"""What a service offers, and what it is doing."""

from fedq.client.calls.base import Calls
from fedq.schemas import Catalog, Preset, PresetList, PresetSummary, Queues, Worker, Workers


class OfferCalls(Calls):
    """Reads presets, catalogue, queues and workers."""

    async def presets(self) -> list[PresetSummary]:
        """The specifications that ship with the service."""
        return (await self._transport.read(PresetList, "/v1/presets")).items

    async def preset(self, name: str) -> Preset:
        """A preset with its specification."""
        return await self._transport.read(Preset, f"/v1/presets/{name}")

    async def catalogue(self) -> Catalog:
        """Everything a specification can ask for, with JSON schemas."""
        return await self._transport.read(Catalog, "/v1/catalog")

    async def queues(self) -> Queues:
        """What waits and what runs."""
        return await self._transport.read(Queues, "/v1/queue")

    async def workers(self) -> list[Worker]:
        """The workers that have reported of late."""
        return (await self._transport.read(Workers, "/v1/workers")).items
