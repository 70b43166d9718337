"""Top-k sparsification."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from fedcore.assurance import Assurance
from fedcore.compression.base import INDEX_BYTES, Sparsifier
from fedcore.core import Compressor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KeepLargest(Compressor):
    """Keeps the k entries of largest magnitude and zeroes the rest.

    Among equals the lowest index stays.

    A contraction: |C(v) - v|^2 <= (1 - k/D) |v|^2 (Stich et al., 2018). Entries that are
    not finite count as the largest, all alike, so a message that is not finite does not arrive as
    one that is.
    """

    assures = Compressor.assures - {Assurance.AS_CLIPPED}

    k: int = 1

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        size = message.abs().nan_to_num_(nan=inf, posinf=inf)
        largest = size.topk(self.k, dim=-1, sorted=False).values  # leaves open which of equals are among them
        least = largest.amin(-1, keepdim=True)
        ties = size == least
        room = self.k - (largest > least).sum(-1, keepdim=True)
        return message.where((size > least) | (ties & (ties.int().cumsum_(-1) <= room)), 0.0)

    def message_bytes(self, dim: int, word: int) -> int:
        """On the wire: k values, and k indices of 4 bytes.

        The dense message where that is no longer.
        """
        return min(self.k * (word + INDEX_BYTES), dim * word)


@dataclass(frozen=True)
class KeepLargestDifference(KeepLargest):
    """EF21: the receiver holds g, and gets the difference to it, g <- g + C(m - g)."""

    assures = KeepLargest.assures

    def feed_back(self, message: Tensor, residual: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        held = residual + self.compress(message - residual, drawn)
        return held, held

    def telescopes(self) -> bool:
        return False


class TopK(Sparsifier):
    """Send the k entries of largest magnitude, with their indices.

    With error feedback the part not sent is added to the next message:

        h = C(rho + message)
        rho <- rho + message - h
    """

    source = "Stich et al., Sparsified SGD with Memory, NeurIPS 2018; Mitra et al., FedLin, NeurIPS 2021"
    example = {"ratio": 0.01}

    kind: Literal["top_k"] = "top_k"
    error_feedback: bool = True
    """Carry over what was not sent."""
    feedback: Literal["ef21"] | None = None
    """Form of error feedback. `ef21`, on the uplink only: the server holds a vector g_i of each client,
    from zero, and receives the compressed difference to it, g_i <- g_i + C(m_i - g_i) (Richtarik et
    al., EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback, NeurIPS
    2021). Departures: m_i is the change that a client would send, in the paper its gradient; with
    partial participation the aggregate is over the g_i of the cohort, not of all clients. The
    authors' code starts g_i at the first gradient, uncompressed (default: the residual of what was
    not sent).
    """

    @model_validator(mode="after")
    def _feeds_back(self) -> Self:
        if self.feedback is not None and not self.error_feedback:
            raise ValueError("`feedback` is a form of error feedback: omit `error_feedback: false`")
        return self

    @property
    def uplink_only(self) -> bool:
        return self.feedback == "ef21"

    def build(self, dim: int) -> Compressor:
        compressor = KeepLargest if self.feedback is None else KeepLargestDifference
        return compressor(self.error_feedback, self.kept(dim))
