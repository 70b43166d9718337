"""`fedq demo` with one worker, whatever the machine."""

from collections.abc import Sequence

from fedq.cli import demo
from fedq.cli import main as fedq


def main(arguments: Sequence[str]) -> None:
    """As `fedq`."""
    demo.MOST_WORKERS = 1
    fedq(arguments)
