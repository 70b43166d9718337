"""`llms.txt` (https://llmstxt.org): the pages for language models, as Markdown, with a list of them.

The plugin mkdocs-llmstxt writes the same for MkDocs; zensical, which builds the site, has no plugins.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "llms.txt"
_BLOCKS = re.compile(r"\n\s*\n")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_PROSE = re.compile(r"[A-Z*\[]|`[^`]")
LONGEST = 200
"""Characters of the description of a page."""


def text(configuration: dict[str, Any], docs: Path) -> str:
    """Return `llms.txt` for the navigation of mkdocs.yml, with the pages in `docs`."""
    sections = [
        "\n".join([f"## {title}", *(_entry(page, docs) for page in pages_of(below))])
        for part in configuration["nav"]
        for title, below in part.items()
    ]
    head = f"# {configuration['site_name']}\n\n> {configuration['site_description']}"
    return "\n\n".join([head, *sections]) + "\n"


def copy_pages(docs: Path, site: Path) -> None:
    """Copy the Markdown of all pages beside their HTML."""
    for page in docs.rglob("*.md"):
        target = site / page.relative_to(docs)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)


def pages_of(entry: object) -> Iterator[str]:
    """Yield the pages below an entry of the navigation."""
    match entry:
        case str():
            yield entry
        case list():
            for below in entry:
                yield from pages_of(below)
        case dict():
            yield from pages_of(list(entry.values()))


def _entry(page: str, docs: Path) -> str:
    title, *blocks = _BLOCKS.split((docs / page).read_text(encoding="utf-8").strip())
    prose = next((block for block in blocks if _PROSE.match(block)), "")
    return f"- [{title.partition(chr(10))[0].lstrip('# ')}]({page}): {_first_sentence(prose)}"


def _first_sentence(prose: str) -> str:
    plain = _LINK.sub(r"\1", " ".join(prose.split()))
    sentence = re.split(r"(?<=[.?]) ", plain)[0].rstrip(":")
    return sentence if len(sentence) <= LONGEST else sentence[: LONGEST - 1].rpartition(" ")[0] + "…"
