"""Rates at which `fedq run` did its work on this machine: a file in FEDQ_HOME, for the time of plans."""

import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

FILE = "rates.json"
LATEST = 25
"""Rates that are kept of each kind of work."""

_RATES = TypeAdapter(dict[str, list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]])


def read_rates(home: Path) -> dict[str, list[float]]:
    """Return the work per second of the latest runs by its kind; empty without a file that can be read."""
    try:
        return _RATES.validate_json((home / FILE).read_bytes())
    except (OSError, ValidationError):
        return {}


def add_rates(home: Path, seen: Iterable[tuple[str, float]]) -> None:
    """Add work per second by its kind; where the file cannot be written, plans have no time."""
    rates = read_rates(home)
    for kind, rate in seen:
        rates[kind] = [*rates.get(kind, ()), rate][-LATEST:]
    partial = home / f"{FILE}.{secrets.token_hex(4)}"
    with suppress(OSError):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.write_bytes(_RATES.dump_json(rates, indent=1))
        partial.replace(home / FILE)
