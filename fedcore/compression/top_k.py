"""Top-k sparsification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.compression.base import INDEX_BYTES, Sparsifier
from fedcore.core import Compressor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KeepLargest(Compressor):
    """Keeps the k entries of largest magnitude and zeroes the rest; among equals the lowest index stays.

    A contraction: |C(v) - v|^2 <= (1 - k/D) |v|^2 (Stich et al., 2018, Lemma A.1). Entries that are not a number count as
    the largest, so a message that is no longer finite arrives as one.
    """

    k: int = 1

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        order = message.abs().sort(dim=-1, descending=True, stable=True).indices
        kept = order[..., : self.k]
        return message.new_zeros(message.shape).scatter(-1, kept, message.gather(-1, kept))

    def message_bytes(self, dim: int, word: int) -> int:
        """On the wire: k values, and k indices of 4 bytes; the dense message where that is no longer."""
        return min(self.k * (word + INDEX_BYTES), dim * word)


class TopK(Sparsifier):
    """Send the k entries of largest magnitude, with their indices.

    With error feedback the part not sent is added to the next message: h = C(rho + message), rho <- rho + message - h.
    """

    source = "Stich et al., Sparsified SGD with Memory, NeurIPS 2018; Mitra et al., FedLin, NeurIPS 2021, Section 4"

    kind: Literal["top_k"]
    error_feedback: bool = True
    """Carry over what was not sent."""

    def build(self, dim: int) -> Compressor:
        return KeepLargest(self.error_feedback, self.kept(dim))
