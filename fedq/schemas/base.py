"""Base class of responses, and times in request bodies."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def _storable(moment: datetime) -> datetime:
    # At the ends of the calendar a moment has no equal in UTC.
    if not EARLIEST <= moment < LATEST:
        raise ValueError("must be between the years 2000 and 9000")
    return moment


StoredMoment = Annotated[AwareDatetime, AfterValidator(_storable)]
"""Time that can be stored in the database."""


class Schema(BaseModel):
    """Base of all responses: read-only, with a description of every field."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, from_attributes=True)
