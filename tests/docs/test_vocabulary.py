"""Code, pages and guides use the standard terms of docs/glossary.md, and one name for one class."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "fedcore", "fedq", "workers")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
GUIDES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [
    path
    for folder in ("templates", "static")
    for path in sorted((ROOT / "api/web" / folder).rglob("*.*"))
    if path.suffix in {".html", ".js", ".css"} and "vendor" not in path.parts
]
# fmt: off
RETIRED = frozenset({
    "muster", "lookout", "predecessor", "veil", "veiled", "outset", "doorkeeper", "deed", "deeds", "parcel",
    "bury", "homeless", "deaf", "thrift", "shields", "nudge", "nudges", "heads", "paces", "seats",
    "outlook", "intake", "carrying", "shortage", "tournament", "wires", "doors", "gang", "undo", "told",
    "patiently",
})
# fmt: on
"""Private names of earlier versions, as parts of identifiers."""
PHRASES = re.compile(
    r"\b(muster|lookout|veiled|outset|doorkeeper|deeds?|parcel|homeless|nudg(e|es|ed|ing)|tournament"
    r"|so many|so long|for want of|as it stands|whoever|somebody|nobody|anybody|of its own accord"
    r"|there is no such thing|thing to mend)\b",
    re.IGNORECASE,
)
"""Words and phrases that readers of English do not expect in prose."""


def definitions(path: Path) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_a_public_class_name_belongs_to_one_module() -> None:
    modules = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_no_identifier_contains_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in SOURCES
        for node in definitions(path)
        if RETIRED & {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", node.name)}
    ]
    modules = [str(path.relative_to(ROOT)) for path in SOURCES if RETIRED & set(path.stem.split("_"))]
    assert found + modules == []


def test_no_docstring_begins_with_a_question_word() -> None:
    found = []
    for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]:
        for node in [ast.parse(path.read_text()), *definitions(path)]:
            text = ast.get_docstring(node) or ""
            if re.match(r"(What|Whether)\b", text):
                found.append(f"{path.relative_to(ROOT)}: {text[:60]}")
    assert found == []


@pytest.mark.parametrize("files", [SOURCES, PAGES, GUIDES], ids=["code", "pages", "guides"])
def test_no_text_uses_a_retired_phrase(files: list[Path]) -> None:
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PHRASES.search(line)
    ]
    assert found == []


def test_a_retired_phrase_is_found() -> None:
    assert PHRASES.search("A worker is nudged.")
    assert not PHRASES.search("A worker is woken.")
