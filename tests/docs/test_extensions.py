"""The pages on extensions name every family, the parts of an algorithm and what these state."""

import re
from inspect import isfunction
from pathlib import Path

import pytest

import fedq.extensions
from deploy.site import extensions
from fedcore.block import Block
from fedcore.core import Declaring
from fedcore.spec.components import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "extensions.md"


def section_of(title: str) -> str:
    """A section of the page."""
    return PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_page_lists_each_family_with_its_base_class_and_methods() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*?) \|", section_of("Components"), re.MULTILINE)
    assert [(name, base) for name, base, _ in rows] == [
        (name, family.base.__name__) for name, family in FAMILIES.items()
    ]
    for _, base, methods in rows:
        named = re.findall(r"`([a-z_]+)`", methods)
        assert named
        assert all(hasattr(getattr(fedq.extensions, base), method) for method in named)


def test_the_public_module_exports_the_base_class_of_each_family() -> None:
    for family in FAMILIES.values():
        assert getattr(fedq.extensions, family.base.__name__) is family.base
        assert issubclass(family.base, Block)
    assert sorted(fedq.extensions.__all__) == sorted(set(fedq.extensions.__all__))
    assert all(hasattr(fedq.extensions, name) for name in fedq.extensions.__all__)


def test_the_page_lists_each_statement_with_the_methods_that_it_describes() -> None:
    section = section_of("A method that others describe")
    listed = {
        (owner, re.findall(r"\w+", states)[0], method)
        for owner, methods, states in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", section, re.MULTILINE)
        for method in re.findall(r"`(\w+)`", methods)
    }
    parts = [vars(fedq.extensions)[name] for name in fedq.extensions.__all__]
    assert listed == {
        (part.__name__, name, method)
        for part in parts
        if isinstance(part, type) and issubclass(part, Declaring) and "described" in vars(part)
        for name, statement in part.described.items()
        for method in statement.methods
    }


def test_the_error_on_the_page_is_the_one_that_is_raised() -> None:
    section = section_of("A method that others describe")
    (shown,) = re.findall(r"^```text\n(.*?)```", section, re.MULTILINE | re.DOTALL)
    source, _, message = shown.partition("TypeError: ")
    with pytest.raises(TypeError) as raised:
        exec(source, vars(fedq.extensions).copy())
    assert str(raised.value).split() == message.split()


def test_the_page_says_when_each_method_of_a_part_is_called() -> None:
    rows = re.findall(r"^\| [^|`]* \| (.*) \|$", section_of("When methods are called"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+\.\w+)`", row)} - {"Models.adaptation"}
    assert named == {
        f"{part}.{name}"
        for part in extensions.PARTS
        if part != "LocalSgd"
        for name, member in vars(vars(fedq.extensions)[part]).items()
        if not name.startswith("_") and isfunction(member)
    }


def test_the_parts_of_an_algorithm_are_listed_with_their_methods() -> None:
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|(.*?)\|$", section_of("Components"), re.MULTILINE)
    listed: dict[str, set[str]] = {}
    for owners, methods, attributes in rows:
        for owner in re.findall(r"`(\w+)`", owners):
            listed.setdefault(owner, set()).update(re.findall(r"`([a-z_]+)`", methods + attributes))
    for part in (
        fedq.extensions.Rule,
        fedq.extensions.Models,
        fedq.extensions.Exchange,
        fedq.extensions.Tuner,
    ):
        own = {name for name in vars(part) if not name.startswith("_")} - {"described", "assures"}
        assert listed[part.__name__] == own
