"""The index of decisions: every page, with its date and status."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"


def test_the_index_lists_every_decision_as_its_page_does() -> None:
    listed = {}
    for line in (FOLDER / "README.md").read_text().splitlines():
        if found := re.fullmatch(r"\| (\d+) \| \[(.*)\]\((\S+)\) \| (\S+) \| (.*) \|", line):
            number, title, name, date, status = found.groups()
            listed[name] = f"# {number}. {title}\n\n**Status.** {status}, {date}.\n"
    pages = {page.name: page.read_text() for page in FOLDER.glob("[0-9]*.md")}
    assert listed.keys() == pages.keys()
    assert [name for name, head in listed.items() if not pages[name].startswith(head)] == []
