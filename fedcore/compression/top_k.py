"""Top-k sparsification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.core import Compressor
from fedcore.spec.base import Block, Fraction

if TYPE_CHECKING:
    from torch import Tensor

INDEX_BYTES = 4


@dataclass(frozen=True)
class KeepLargest(Compressor):
    """Keeps the k entries of largest magnitude and zeroes the rest; among equals the lowest index stays."""

    k: int = 1

    def compress(self, message: Tensor) -> Tensor:
        order = message.abs().sort(dim=-1, descending=True, stable=True).indices
        kept = order[..., : self.k]
        return message.new_zeros(message.shape).scatter(-1, kept, message.gather(-1, kept))

    def message_bytes(self, dim: int, word: int) -> int:
        """k values and k indices of 4 bytes; never more than the dense message."""
        return min(self.k * (word + INDEX_BYTES), dim * word)


class TopK(Block):
    """Send the k entries of largest magnitude, with their indices (Stich et al., 2018; FedLin, Section 4).

    With error feedback the part not sent is added to the next message: h = C(rho + message), rho <- rho + message - h.
    """

    kind: Literal["top_k"]
    k: Annotated[int, Field(ge=1)] | None = None
    """Entries kept."""
    ratio: Fraction | None = None
    """k as a share of D: k = max(1, round(ratio D))."""
    delta: Annotated[float, Field(ge=1, le=1e12)] | None = None
    """k as D / delta, rounded, at least 1: FedLin's compression level."""
    error_feedback: bool = True
    """Carry over what was not sent."""

    @model_validator(mode="after")
    def _one_level(self) -> Self:
        if sum(level is not None for level in (self.k, self.ratio, self.delta)) != 1:
            raise ValueError("give the level as one of `k`, `ratio` or `delta`")
        return self

    def kept(self, dim: int) -> int:
        """k for D = `dim`."""
        if self.k is not None:
            return self.k
        share = self.ratio if self.ratio is not None else 1 / (self.delta or 1)
        return max(1, round(share * dim))

    def build(self, dim: int) -> Compressor:
        """The compressor for messages of D = `dim` numbers."""
        return KeepLargest(self.error_feedback, self.kept(dim))
