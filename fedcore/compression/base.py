"""Base classes of the specifications of compressors."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from fedcore.block import Block, Fraction
from fedcore.core import Compressor

INDEX_BYTES = 4


class CompressorSpec(Block):
    """A compressor and its parameters."""

    source: ClassVar[str | None] = None
    """The publication."""

    kind: str

    def build(self, dim: int) -> Compressor:
        """The compressor for messages of D = `dim` numbers."""
        return Compressor()

    def misfit(self, dim: int) -> str | None:
        """Reason why messages of D = `dim` numbers cannot be compressed; None if they can."""
        return None

    @property
    def uplink_only(self) -> bool:
        """True if it cannot compress messages of the server."""
        return False


class Sparsifier(CompressorSpec):
    """A compressor that sends k of the D entries, with the level as k, as a share of D, or as
    FedLin's delta.
    """

    k: Annotated[int, Field(ge=1)] | None = None
    """Entries kept."""
    ratio: Fraction | None = None
    """k as a share of D: k = max(1, round(ratio D))."""
    delta: Annotated[float, Field(ge=1, le=1e12)] | None = None
    """k as D / delta, rounded, at least 1: FedLin's compression level."""

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

    def misfit(self, dim: int) -> str | None:
        """Reason why messages of D = `dim` numbers have fewer than are kept; None if they have not."""
        if self.kept(dim) <= dim:
            return None
        return f"{self.kind} cannot keep {self.kept(dim)} of {dim} parameters; use at most {dim}"
