"""What came of an attempt to deliver."""

from dataclasses import dataclass

GONE = 410
"""By this HTTP status a receiver says that it wants nothing more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an attempt to deliver."""

    seconds: float
    code: int | None = None
    """The HTTP status; None when there was none."""
    body: str = ""
    """The beginning of what was answered."""
    error: str | None = None
    """Why it failed, for whoever made the webhook; None when it was delivered."""
    retry_after_s: float = 0.0
    """How long the receiver asks to be left alone."""
