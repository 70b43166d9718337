"""docs/operations.md says what is so."""

import re
from pathlib import Path

import pytest

from fedcore.block import field_docstrings
from fedcore.settings import Settings
from tests.deploy.test_monitoring import told

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()

__all__ = ["told"]


def test_every_setting_is_in_the_table_with_its_default_and_what_it_does() -> None:
    given = re.findall(r"^\| `FEDQ_.*$", PAGE, re.MULTILINE)
    rows = settings_table()
    assert given == rows, "the rows of the table of settings are:\n" + "\n".join(rows)


def settings_table() -> list[str]:
    """The rows, in the order of the settings."""
    described = field_docstrings(Settings)
    return [
        f"| `FEDQ_{name.upper()}` | {_shown(field.default)} | {str(described[name]).replace(chr(10), ' ')} |"
        for name, field in Settings.model_fields.items()
    ]


def _shown(default: object) -> str:
    match default:
        case None | ():
            return ""
        case tuple():
            return f"`{','.join(map(str, default))}`"
        case _:
            return f"`{default}`"


def test_every_test_that_shows_a_promise_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    sources = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    written = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert named <= written


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_metric_is_explained_with_its_labels(told: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| `(fedq_\w+)(?:\{(.*?)\})?`", PAGE, re.MULTILINE)
    explained = {name: set(filter(None, labels.split(","))) for name, labels in rows}
    series = {
        re.sub(r"_(bucket|count|sum)$", "", name): labels - {"le"}
        for name, labels in told.items()
        if name.startswith("fedq_")
    }
    assert explained == series


def test_links_of_operations_lead_somewhere() -> None:
    for place in re.findall(r"\]\((?!http)([^)#]+)", PAGE):
        assert (ROOT / "docs" / place).exists(), place
