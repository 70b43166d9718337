"""The page on extensions names every family, with its base class."""

import re
from pathlib import Path

import fedq.extensions
from fedcore.block import Block
from fedcore.spec.components import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "extensions.md"


def test_the_page_lists_each_family_with_its_base_class_and_methods() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
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
