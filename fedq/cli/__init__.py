"""The command line: `fedq`."""

from fedq.cli.app import main

__all__ = ["main"]
