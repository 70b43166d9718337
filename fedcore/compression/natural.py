"""Natural compression: every number is rounded at random to a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.assurance import Assurance
from fedcore.compression.base import CompressorSpec
from fedcore.core import Compressor
from fedcore.lazy import torch

if TYPE_CHECKING:
    from numpy import float64
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import Tensor

VARIANCE = 1 / 8
"""omega, with E |C(v) - v|^2 <= omega |v|^2: the largest (t - 1)(2 - t) / t^2 for 1 <= t <= 2."""
EXPONENT_BITS = {2: 8, 4: 8, 8: 11}
"""Bits of the exponent of a number by its bytes: bfloat16, float32, float64."""


@dataclass(frozen=True)
class RoundToPowers(Compressor):
    """Rounds |v_i| to one of the two powers of two beside it, so that the mean stays: C_nat.

    With 2^a <= |v_i| < 2^(a+1) it is 2^(a+1) with probability |v_i| / 2^a - 1, else 2^a; zero stays
    zero. With error feedback C / (1 + omega) is sent, which is a contraction (as for QSGD). A number
    that is not finite arrives as not a number.
    """

    assures = Compressor.assures - {Assurance.AS_CLIPPED}

    def sample(self, rng: Generator, dim: int) -> NDArray[float64]:
        """u [D]."""
        return rng.random(dim)

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        assert drawn is not None
        # |v| = fraction 2^exponent with 1/2 <= fraction < 1.
        fraction, exponent = torch.frexp(message.abs())
        up = drawn.to(fraction.dtype) < 2 * fraction - 1
        power = torch.ldexp(torch.ones_like(message), exponent - 1 + up)
        sent = torch.where(message == 0, message, power.copysign(message))
        if self.error_feedback:
            sent = sent / (1 + VARIANCE)
        return sent + (message - message)

    def message_bytes(self, dim: int, word: int) -> int:
        """On the wire: a sign bit and the exponent of each number, packed into whole bytes."""
        return -(-dim * (1 + EXPONENT_BITS[word]) // 8)


class Natural(CompressorSpec):
    """Send every number as its sign and a power of two, rounded at random and unbiased.

    A number takes 9 bits in float32 and 12 in float64, and the variance is at most 1/8 of its square.
    With error feedback what is sent is divided by 9/8, and what was not sent is added to the next
    message.
    """

    source = "Horvath et al., Natural Compression for Distributed Deep Learning, MSML 2022"
    example = {"error_feedback": True}

    kind: Literal["natural"] = "natural"
    error_feedback: bool = False
    """Carry over what was not sent."""

    def build(self, dim: int) -> Compressor:
        return RoundToPowers(self.error_feedback)
