"""Compression of what clients send (`uplink`) and of what the server sends (`downlink`)."""

from typing import Annotated, Literal

from pydantic import Field

from fedcore.compression.top_k import TopK
from fedcore.core import Compressor
from fedcore.spec.base import Block


class NoCompression(Block):
    """Send every number."""

    kind: Literal["none"] = "none"

    def build(self, dim: int) -> Compressor:
        """The identity."""
        return Compressor()


AnyCompression = Annotated[NoCompression | TopK, Field(discriminator="kind")]


class Compression(Block):
    """Compression by direction; it acts on model changes."""

    uplink: AnyCompression = NoCompression()
    """Clients to server: each client's change y_i - x."""
    downlink: AnyCompression = NoCompression()
    """Server to clients: the change of x; clients train from the model they have put together from those."""


__all__ = ["AnyCompression", "Compression", "NoCompression", "TopK"]
