"""What the README shows can be done."""

import re
from pathlib import Path

import pytest
import yaml

from api.cli.app import PANELS
from fedcore import ExperimentSpec

README = Path(__file__).parents[1] / "README.md"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_its_specification_is_valid() -> None:
    (document,) = _blocks("yaml")
    assert len(ExperimentSpec.model_validate(yaml.safe_load(document)).arms()) == 2


@pytest.mark.parametrize("code", _blocks("python"))
def test_its_python_is_python(code: str) -> None:
    compile(code, str(README), "exec")


def test_its_commands_exist() -> None:
    named = set(re.findall(r"fedq ([a-z]+)", "\n".join(_blocks("console"))))
    known = {command.__name__ for commands in PANELS.values() for command in commands}
    assert named
    assert named <= known


def test_what_it_links_to_is_there() -> None:
    places = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert places
    assert all((README.parent / place).exists() for place in places)
