"""The site: all that is public is in it, nothing in it comes from elsewhere, and its links lead
somewhere.
"""

import re
from pathlib import Path

import pytest

import fedq.extensions
from deploy.site import extensions, python, specification
from deploy.site.__main__ import ROOT, build, navigation, reference
from deploy.site.formulas import with_mathml
from fedcore import presets
from fedcore.measures import GROUPS, MEASURES
from fedq.catalogue import build_catalog
from tests.support.described import described


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The pages that are written from the code."""
    return dict(reference())


@pytest.mark.slow
def test_site_builds_without_a_dead_link_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    build(tmp_path)
    site = tmp_path / "site"
    loaded = [
        found
        for page in site.rglob("*.html")
        for found in re.findall(
            r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\" >]+)", page.read_text()
        )
    ]
    assert not loaded
    for name in navigation():
        assert (site / name).with_suffix(".html").exists()
    assert "<math" in (site / "mathematics.html").read_text()
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+\.md)\): .+", (site / "llms.txt").read_text(), re.MULTILINE)
    assert listed == navigation()
    for name in listed:
        assert "<math" not in (site / name).read_text()


def test_every_page_is_in_the_navigation(pages: dict[str, str]) -> None:
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    decisions = {name for name in written if name.startswith("decisions/")}
    named = navigation()
    assert len(named) == len(set(named))
    assert set(named) == (written - decisions) | {f"reference/{name}" for name in pages}


def test_every_kind_is_there_with_its_source_and_its_fields(pages: dict[str, str]) -> None:
    for block in build_catalog().blocks:
        page = pages[f"specification/{block.path.partition('.')[0]}.md"]
        for kind in block.kinds:
            _, _, part = page.partition(f"\n### `{kind.kind}`\n")
            assert part, (block.path, kind.kind)
            fields = kind.json_schema["properties"].keys() - {"kind"}
            assert all(f"| `{field}` |" in page for field in fields)
    algorithms = pages["specification/algorithm.md"]
    assert algorithms.count("*Source:* ") == len(
        next(block for block in build_catalog().blocks if block.path == "algorithm").kinds
    )


def test_every_algorithm_has_a_formula() -> None:
    (block,) = [block for block in build_catalog().blocks if block.path == "algorithm"]
    for kind in block.kinds:
        assert re.search(r" (<-|=) ", kind.description), f"{kind.kind} gives no recursion"


def test_every_call_parameter_and_field_of_the_interface_is_described(pages: dict[str, str]) -> None:
    document = described()
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            assert f"### `{verb.upper()} {path}`" in pages["http.md"]
            assert operation["summary"]
            assert operation["description"]
            assert all(parameter["description"] for parameter in operation.get("parameters", ()))
    for name, schema in document["components"]["schemas"].items():
        for field, told in schema.get("properties", {}).items():
            assert told.get("description"), f"{name}.{field}"


def test_every_public_name_of_python_has_a_docstring() -> None:
    assert python.undocumented() == extensions.undocumented() == []


def test_the_methods_and_statements_of_each_part_of_an_algorithm_are_described(pages: dict[str, str]) -> None:
    page = pages["extensions.md"]
    for name in extensions.PARTS:
        part = vars(fedq.extensions)[name]
        _, _, told = page.partition(f"\n### `{name}`\n")
        told = told.partition("\n### ")[0]
        for member in (name for name in vars(part) if not name.startswith("_")):
            is_method = callable(getattr(part, member))
            assert (f"\n#### `{member}`\n" if is_method else f"\n| `{member}` |") in told, f"{name}.{member}"
    listed = {name for name in fedq.extensions.__all__ if name not in (*extensions.LIBRARIES, "VERSION")}
    assert listed == set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))


def test_every_preset_is_listed(pages: dict[str, str]) -> None:
    assert all(f"| `{name}` |" in pages["presets.md"] for name in presets.names())


def test_formulas_become_mathml_and_prices_and_commands_stay() -> None:
    page = with_mathml("costs $5 or `$x$`, $x^2$\n\n```console\n$ a $b\n```\n\n    $c$\n\n$$\\sum_i p_i$$\n")
    assert page.count("<math") == 2
    assert "costs $5 or `$x$`, <span><math" in page
    assert "$ a $b" in page
    assert "    $c$" in page
    assert 'display="block"' in page


# Every measure is described in the reference, under its name.

PAGE = dict(specification.pages())["specification/evaluation.md"]


@pytest.mark.parametrize("name", MEASURES)
def test_the_reference_has_a_row_for_each_measure(name: str) -> None:
    assert PAGE.count(f"| `{name}` |") == 1
    assert MEASURES[name].meaning


def test_no_two_measures_share_a_name() -> None:
    assert len(MEASURES) == sum(len(group.measures()) for group in GROUPS)
