"""A throttled worker to which a file says how many processes the system has killed for memory."""

from pathlib import Path

from tests.workers import throttled_worker
from workers import memory

KILLS = "kills"
"""The file, in the folder where the worker was started."""


def main() -> None:
    """As `workers.worker`."""
    memory.oom_kill_count = _kills  # type: ignore[attr-defined]
    throttled_worker.main()


def _kills(counter: Path = Path(KILLS)) -> int:
    return int(counter.read_text())
