"""Markdown, as the pages of the reference need it."""

from collections.abc import Iterable, Sequence
from inspect import cleandoc


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows."""
    lines = [_row(cell(text) for text in row) for row in rows]
    return "\n".join([_row(head), _row("---" for _ in head), *lines]) if lines else ""


def cell(text: str) -> str:
    """`text` as it may stand in a table: in one line, bars escaped."""
    return " ".join(text.split()).replace("|", r"\|")


def code(value: object) -> str:
    """`value` as code."""
    return f"`{value}`"


def prose(docstring: str | None) -> str:
    """A docstring as Markdown.

    Its indented formulas are blocks of code, which they are in Markdown too.
    """
    lines = cleandoc(docstring or "").splitlines()
    return "\n".join(line if line.startswith("    ") else literal(line) for line in lines)


def literal(text: str) -> str:
    """`text` with what Markdown would take for emphasis or HTML outside of `code` taken
    literally.
    """
    parts = text.split("`")
    parts[::2] = [
        part.replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_").replace("||", "&#124;&#124;")
        for part in parts[::2]
    ]
    return "`".join(parts)


def page(title: str, *parts: str) -> str:
    """A page."""
    return "\n\n".join([f"# {title}", *filter(None, parts)]) + "\n"


def section(title: str, *parts: str, level: int = 2) -> str:
    """A part of a page under a heading."""
    return "\n\n".join([f"{'#' * level} {title}", *filter(None, parts)])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
