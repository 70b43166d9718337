"""Wires of the client that note pauses instead of making them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from fedq.client.transport import AsyncWire, BlockingWire, Transport, Wire


class Timeless(BlockingWire):
    """Makes no pauses; see BlockingWire."""

    def __init__(self, pauses: list[float], **options: Any) -> None:
        super().__init__(**options)
        self._pauses = pauses

    async def sleep(self, seconds: float) -> None:
        self._pauses.append(seconds)


class AsyncTimeless(AsyncWire):
    """Makes no pauses; see AsyncWire."""

    def __init__(self, pauses: list[float], **options: Any) -> None:
        super().__init__(**options)
        self._pauses = pauses

    async def sleep(self, seconds: float) -> None:
        self._pauses.append(seconds)
        await anyio.lowlevel.checkpoint()


def timeless(
    wire: Callable[..., Wire], url: str, key: str | None, pauses: list[float], **options: Any
) -> Transport:
    """A transport whose clock shows the sum of `pauses`, the pauses that it has not made."""
    return Transport(partial(wire, pauses, **options), url, key, clock=lambda: sum(pauses))
