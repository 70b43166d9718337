"""Calls for presets, catalogue, queues and workers."""

from fedq.client.calls.base import Calls
from fedq.schemas import Catalog, Preset, PresetList, PresetSummary, Queues, Worker, Workers


class OfferCalls(Calls):
    """Read presets, catalogue, queues and workers."""

    async def presets(self) -> list[PresetSummary]:
        """Return the presets."""
        return (await self._transport.read(PresetList, "/v1/presets")).items

    async def preset(self, name: str) -> Preset:
        """Return a preset with its specification."""
        return await self._transport.read(Preset, f"/v1/presets/{name}")

    async def catalogue(self) -> Catalog:
        """Return all components of a specification with JSON schemas."""
        return await self._transport.read(Catalog, "/v1/catalog")

    async def queues(self) -> Queues:
        """Return the number of unfinished runs by queue."""
        return await self._transport.read(Queues, "/v1/queue")

    async def workers(self) -> list[Worker]:
        """Return the active workers."""
        return (await self._transport.read(Workers, "/v1/workers")).items
