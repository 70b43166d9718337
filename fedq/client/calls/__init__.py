"""Calls to a service, by subject."""

from pydantic import BaseModel

from fedcore.platform.identifiers import is_id
from fedq.client.transport import Transport


class Calls:
    """Calls to one service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _id(self, collection: str, given: str) -> str:
        """Return the id of the record that `given` stands for, which other requests and repetitions then
        mean too.
        """
        if is_id(given):
            return given
        return (await self._transport.read(Identified, (collection, given))).id


class Identified(BaseModel):
    """The id of a record."""

    id: str
