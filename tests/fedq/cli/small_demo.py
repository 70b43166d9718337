"""`fedq demo` with one worker, whatever the machine."""

from collections.abc import Sequence

from fedq.cli import main as fedq
from fedq.cli import service


def main(arguments: Sequence[str]) -> None:
    """As `fedq`."""
    service.MOST_WORKERS = 1
    fedq(arguments)
