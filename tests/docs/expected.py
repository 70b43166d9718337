"""Comparison of the output shown on a page with the output of the command."""

import re
from collections.abc import Mapping

_PARTS = re.compile(
    r"(?P<any>\.\.\.)|(?P<id>(?<=_)[0-9a-z]{26})|(?P<secret>whsec_\S+)|(?P<number>[-+]?\d[\d.,]*)"
    r"|(?P<rule>─+)|(?P<space>\s+)|(?P<text>.)"
)
_PATTERNS = {
    "any": r"[\s\S]*?",
    "id": "([0-9a-z]{26})",
    "secret": r"(whsec_\S+)",
    "number": r"[-+]?\d[\d.,]*",
    "rule": "─+",
    "space": r"\s+",
}


def matched(expected: str, printed: str) -> dict[str, str] | None:
    """Ids and secrets of the page, with those of this run.

    None where `printed` does not end with what is expected.
    """
    parts = list(_PARTS.finditer(expected.strip()))
    pattern = "".join(_PATTERNS.get(str(part.lastgroup)) or re.escape(part[0]) for part in parts)
    found = re.fullmatch(rf"(?:[\s\S]*\n)?{pattern}", printed.strip())
    names = [part[0] for part in parts if part.lastgroup in ("id", "secret")]
    return dict(zip(names, found.groups(), strict=True)) if found else None


def renamed(text: str, names: Mapping[str, str]) -> str:
    """`text` with what the page calls things replaced by what they are called here."""
    for name, here in names.items():
        text = text.replace(name, here)
    return text
