"""Rand-k sparsification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.assurance import Assurance
from fedcore.compression.base import Sparsifier
from fedcore.core import Compressor

if TYPE_CHECKING:
    from numpy import int64
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class KeepRandom(Compressor):
    """Keeps k entries drawn uniformly without replacement and zeroes the rest.

    Without error feedback the kept entries are scaled by D/k, so that E C(v) = v and
    E |C(v) - v|^2 = (D/k - 1) |v|^2 (Wangni et al., 2018). With it they are sent as they are: the
    scaled message would be no contraction, and the residual would grow; unscaled,
    E |C(v) - v|^2 = (1 - k/D) |v|^2 (Stich et al., 2018, Definition 2.1 and Lemma A.1). Entries
    that are not kept are not looked at: only a kept one that is not finite arrives as such.
    """

    assures = Compressor.assures - {Assurance.AS_CLIPPED}

    k: int = 1

    def sample(self, rng: Generator, dim: int) -> NDArray[int64]:
        """The indices [k] of the entries to keep."""
        return rng.choice(dim, self.k, replace=False, shuffle=False)

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        assert drawn is not None
        kept = message.gather(-1, drawn)
        if not self.error_feedback:
            kept = kept * (message.shape[-1] / self.k)
        return message.new_zeros(message.shape).scatter(-1, drawn, kept)

    def message_bytes(self, dim: int, word: int) -> int:
        """On the wire: k values.

        Which entries they are, both ends draw from the run's seed, the round and the client, known
        to both.
        """
        return self.k * word


class RandK(Sparsifier):
    """Send k entries drawn at random.

    Sender and receiver draw the indices from the same stream, so only values travel.

    Without error feedback the entries are scaled by D/k and the message is unbiased (Wangni et
    al.); with it they are not, and what was not sent is added to the next message (Stich et al.).
    """

    source = (
        "Wangni et al., Gradient Sparsification for Communication-Efficient Distributed Optimization, NeurIPS"
        " 2018; Stich et al., Sparsified SGD with Memory, NeurIPS 2018"
    )
    example = {"ratio": 0.25}

    kind: Literal["rand_k"] = "rand_k"
    error_feedback: bool = False
    """Carry over what was not sent."""

    def build(self, dim: int) -> Compressor:
        return KeepRandom(self.error_feedback, self.kept(dim))
