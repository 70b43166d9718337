"""A worker on a leash to which a file says how many processes the system has killed because memory ran out."""

from pathlib import Path

from tests.workers import leashed
from workers import oom

KILLS = "kills"
"""The file, in the folder where the worker was started."""


def main() -> None:
    """As `workers.worker`."""
    oom.kills = lambda: int(Path(KILLS).read_text())  # type: ignore[attr-defined]
    leashed.main()
