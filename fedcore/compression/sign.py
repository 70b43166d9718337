"""Scaled signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.assurance import Assurance
from fedcore.compression.base import CompressorSpec
from fedcore.core import Compressor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ScaledSign(Compressor):
    """C(v) = (|v|_1 / D) sign(v), with sign(0) = 1: a bit has no third value.

    A contraction: |C(v) - v|^2 = (1 - |v|_1^2 / (D |v|_2^2)) |v|^2, whatever sign(0) is, and the
    factor is at most 1 - 1/D (Karimireddy et al., 2019, Lemma 8). A message that is not finite
    arrives as one: its scale is not.
    """

    assures = Compressor.assures - {Assurance.AS_CLIPPED}

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        scale = message.abs().mean(-1, keepdim=True)
        return scale.expand_as(message).copysign(message + 0.0)  # -0.0 + 0.0 = 0.0

    def message_bytes(self, dim: int, word: int) -> int:
        """On the wire: the scale in one word, then D bits, packed into whole bytes.

        The dense message where that is no longer.
        """
        return min(word + -(-dim // 8), dim * word)


class Sign(CompressorSpec):
    """Send one bit an entry, its sign, and the mean magnitude; a zero is sent as positive.

    With error feedback what was not sent is added to the next message, without which signs need not
    converge.
    """

    source = (
        "Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019,"
        " Algorithm 1"
    )

    kind: Literal["sign"] = "sign"
    error_feedback: bool = True
    """Carry over what was not sent."""

    def build(self, dim: int) -> Compressor:
        return ScaledSign(self.error_feedback)
