"""What every answer has in common."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Base of every answer: read-only, described field by field."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, from_attributes=True)
