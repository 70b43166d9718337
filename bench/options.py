"""Command-line options of `python -m bench`."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

HOME = Path(".bench")


def command(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of `name`; its module's docstring is shown as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def among(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
        return chosen

    return names
