"""docs/python.md: the calls that it names are there, in both clients."""

import re
from pathlib import Path

from fedq.client import AsyncClient, Client

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


def test_the_calls_that_the_page_names_are_there() -> None:
    for name in [*re.findall(r"client\.(\w+)\(", PAGE), "dry_run", "stream"]:
        assert callable(getattr(Client, name))
        assert callable(getattr(AsyncClient, name))
