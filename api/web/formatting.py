"""Figures as people read them: the filters of the templates."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
"""Seconds in each, longest first."""
UNKNOWN = "\N{EN DASH}"
SIZES = ("kB", "MB", "GB", "TB")


def duration(seconds: float | None) -> str:
    """As `2 h 5 min`: the two largest units, or seconds; a dash where it is not known."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for position, (size, name) in enumerate(UNITS):
        if whole >= size:
            smaller, smaller_name = UNITS[position + 1] if position + 1 < len(UNITS) else (1, "s")
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime) -> str:
    """How long ago that was, as `5 min ago`."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if seconds < 60:
        return "just now"
    size, name = next((size, name) for size, name in UNITS if seconds >= size)
    return f"{seconds // size:.0f} {name} ago"


def clock(moment: datetime) -> str:
    """As `2026-01-31 12:00:00 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: float) -> str:
    """Bytes, as `1.5 MB`."""
    if count < 1_000:
        return f"{count:.0f} B"
    for name in SIZES:
        count /= 1_000
        if count < 1_000 or name == SIZES[-1]:
            break
    return f"{count:.3g} {name}"


def count(number: int) -> str:
    """As `12,345`."""
    return f"{number:,}"


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": duration,
    "ago": ago,
    "clock": clock,
    "size": size,
    "count": count,
}
