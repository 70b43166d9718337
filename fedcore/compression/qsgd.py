"""QSGD: stochastic quantisation."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.assurance import Assurance
from fedcore.compression.base import CompressorSpec
from fedcore.core import Compressor

if TYPE_CHECKING:
    from numpy import float64
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import Tensor

MAX_LEVELS = 2**15 - 1
"""16 bits an entry, with its sign."""


@dataclass(frozen=True)
class Quantise(Compressor):
    """Rounds |v_i| / |v|_2 at random to one of the two multiples of 1/s beside it, so that the mean
    stays.

    Q_i = |v|_2 sign(v_i) l_i / s, with l_i = floor(a_i) + [u_i < a_i - floor(a_i)],
    a_i = s |v_i| / |v|_2 and u_i uniform. E Q = v and E |Q - v|^2 <= omega |v|^2, with
    omega = min(D / s^2, sqrt(D) / s) (Alistarh et al., 2017, Lemma 3.1).

    With error feedback Q / (1 + omega) is sent: Q itself is no contraction where omega >= 1, and
    the residual would grow; Q / (1 + omega) is one, with factor 1 - 1 / (1 + omega) (Karimireddy et
    al., 2019, for any unbiased compressor). A message that is not finite arrives as not a number.
    """

    assures = Compressor.assures - {Assurance.AS_CLIPPED}

    levels: int = 1

    def sample(self, rng: Generator, dim: int) -> NDArray[float64]:
        """u [D]."""
        return rng.random(dim)

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        assert drawn is not None
        largest = message.abs().amax(-1, keepdim=True)
        largest = largest + (largest == 0)
        unit = (
            message / largest
        )  # the squares of very small and very large entries are beyond their precision
        length = unit.norm(dim=-1, keepdim=True)
        norm = largest * length / self._shrinkage(message.shape[-1])
        a = unit.abs_().mul_(self.levels / (length + (length == 0))).clamp_(max=self.levels)
        level = a.floor()
        level += drawn.to(a.dtype) < a.sub_(level)
        return level.div_(self.levels).mul_(norm).copysign_(message)

    def variance(self, dim: int) -> float:
        """omega for D = `dim`."""
        return min(dim / self.levels**2, sqrt(dim) / self.levels)

    def message_bytes(self, dim: int, word: int) -> int:
        """On the wire: |v|_2 in one word, then D fields of a sign bit and ceil(log2(s + 1)) bits of
        level, packed into whole bytes.

        The dense message where that is no longer.
        """
        bits = dim * (1 + self.levels.bit_length())
        return min(word + -(-bits // 8), dim * word)

    def _shrinkage(self, dim: int) -> float:
        return 1 + self.variance(dim) if self.error_feedback else 1.0


class QSGD(CompressorSpec):
    """Send every entry as its sign and one of s + 1 levels of |v_i| / |v|_2, rounded at random and
    unbiased.

    The norm is taken over the whole message. With error feedback what is sent is divided by
    1 + omega, omega being the variance bound min(D / s^2, sqrt(D) / s), and what was not sent is
    added to the next message.
    """

    source = (
        "Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS"
        " 2017, Section 3.1, in a fixed-width encoding"
    )
    example = {"levels": 7}

    kind: Literal["qsgd"] = "qsgd"
    levels: Annotated[int, Field(ge=1, le=MAX_LEVELS)] = 127
    """s: steps between 0 and the norm; an entry takes 1 + ceil(log2(s + 1)) bits."""
    error_feedback: bool = False
    """Carry over what was not sent."""

    def build(self, dim: int) -> Compressor:
        return Quantise(self.error_feedback, self.levels)
