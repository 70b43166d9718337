"""Leave to go on: what is open for long ends when the key that opened it no longer allows it."""

import asyncio
from time import monotonic

from fedcore.platform.access import Principal
from fedcore.platform.store import UNAVAILABLE, Database, keys

LOOK_S = 5.0
"""So long, at most, somebody is told something more after his key has ended."""


class Leave:
    """The leave of one who listens. Changes in place."""

    def __init__(self, database: Database, principal: Principal) -> None:
        self._database, self._principal, self._looked_at = database, principal, monotonic()

    async def holds(self) -> bool:
        """Whether it does; to be asked before anything is told."""
        if monotonic() - self._looked_at < LOOK_S:
            return True
        self._looked_at = monotonic()
        return await asyncio.to_thread(self._look)

    def _look(self) -> bool:
        try:
            with self._database.reading() as session:
                return keys.still_allows(session, self._principal)
        except UNAVAILABLE:
            return True  # There is nothing to tell either.
