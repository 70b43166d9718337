"""Base class and types of fields of all blocks of a specification, below all families of components."""

from collections.abc import Mapping
from math import ceil, floor
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

MAX_CLIENTS = 1_000_000
MAX_ROUNDS = 1_000_000

PositiveRate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
ClientCount = Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Tag = Annotated[str, Field(pattern=r"^[\w][\w .:/-]{0,63}$")]
"""Label of an experiment."""
Mode = Literal["min", "max"]
"""Which values of a metric are better."""


def is_none(value: object) -> bool:
    """True for None: with `Field(exclude_if=is_none)` a field that came later says nothing where it
    is absent, so that digests and fingerprints of earlier documents stay the same.
    """
    return value is None


def floor_share(share: float, count: int) -> int:
    """floor(share count) of the decimal `share`; see `ceil_share`."""
    return floor(share * count * (1 + 1e-12))


def ceil_share(share: float, count: int) -> int:
    """ceil(share count) of the decimal `share`: 0.55 of 100 is 55, although the product of floats
    is above it.
    """
    # Products of floats are right to 2e-16; no decimal that is written in full comes this close to
    # a whole number.
    return ceil(share * count * (1 - 1e-12))


def _describe_kind(schema: dict[str, Any]) -> None:
    """Give `kind` the same description everywhere."""
    kind = schema.get("properties", {}).get("kind")
    if kind is not None:
        kind.setdefault("description", "Kind of the block.")


class Block(BaseModel):
    """One block of a specification: immutable; unknown fields are errors.

    Lists have `fail_fast` and report only their first wrong entry: Pydantic takes some 400 bytes
    per error and continues beyond the maximum length of a tuple, 3 GB for a body of 4 MB.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra=_describe_kind,
        # A process uses few of the kinds.
        defer_build=True,
    )
    example: ClassVar[Mapping[str, Any]] = {}
    """Fields of an example, without the kind, for the OpenAPI document and tests."""
    interface: ClassVar[str | None] = None
    """Version of `fedq.extensions` that an extension was written for."""


def kind_of(member: type[Block]) -> str:
    """The value of `kind` that stands for `member`."""
    return str(get_args(member.model_fields["kind"].annotation)[0])
