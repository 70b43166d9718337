"""What every block of a specification has in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_CLIENTS = 1_000_000
MAX_ROUNDS = 1_000_000

PositiveRate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Block(BaseModel):
    """One block of a specification: immutable, and a field it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
