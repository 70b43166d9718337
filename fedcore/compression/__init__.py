"""Compression of what clients send (`uplink`) and of what the server sends (`downlink`)."""

from typing import Annotated, Literal

from pydantic import Field

from fedcore.block import Block
from fedcore.compression.base import CompressorSpec, Sparsifier
from fedcore.compression.qsgd import QSGD
from fedcore.compression.rand_k import RandK
from fedcore.compression.sign import Sign
from fedcore.compression.top_k import TopK


class NoCompression(CompressorSpec):
    """Send every number."""

    kind: Literal["none"] = "none"


AnyCompression = Annotated[NoCompression | TopK | RandK | QSGD | Sign, Field(discriminator="kind")]


class Compression(Block):
    """Compression by direction.

    It applies to model updates, or in FedLin and FedSVRG to the exchanged gradients.
    """

    uplink: AnyCompression = NoCompression()
    """Clients to server: each client's change y_i - x."""
    downlink: AnyCompression = NoCompression()
    """Server to clients: the change of x; clients train from the model reconstructed from these
    changes.
    """


__all__ = ["QSGD", "AnyCompression", "Compression", "NoCompression", "RandK", "Sign", "Sparsifier", "TopK"]
