"""The command line: `fedq`."""

from api.cli.app import main

__all__ = ["main"]
