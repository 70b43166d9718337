"""The reference of the command line, as Typer writes it."""

import typer
from typer.cli import get_docs_for_click

from fedq.cli.app import application

NAME = "cli.md"


def text() -> str:
    """The page."""
    root = typer.main.get_command(application())
    return get_docs_for_click(obj=root, ctx=typer.Context(root), name="fedq", title="Command line")
