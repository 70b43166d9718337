"""The reference of `fedq.extensions`: each part of an algorithm, what its methods are given, and the base
classes of components, read off their sources.
"""

from collections.abc import Iterable, Iterator

import griffe

import fedq.extensions
from deploy.site import python
from deploy.site.markup import code, page, prose, section
from fedcore.spec.components import FAMILIES

NAME = "extensions.md"
MODULE = "fedq.extensions"
PARTS = (
    "Rule",
    "LocalSgd",
    "Models",
    "Objective",
    "Exchange",
    "Tuner",
    "Aggregator",
    "ServerOptimiser",
    "Solver",
    "Compressor",
    "LocalRandomiser",
)
"""Parts of an algorithm, as `docs/extensions.md` lists them."""
LIBRARIES = ("functional", "np", "torch")
"""Names of libraries that are loaded on first use."""


def text() -> str:
    """The page."""
    bases = dict.fromkeys(family.base.__name__ for family in FAMILIES.values())
    others = [name for name in fedq.extensions.__all__ if name not in (*PARTS, *bases, *LIBRARIES, "VERSION")]
    return page(
        "Extensions",
        "What [extensions](../extensions.md) import from `fedq.extensions`: signatures, shapes and"
        " declarations, as they are in the source. [The guide](../extensions.md#when-methods-are-called) says"
        " when methods are called.",
        section("Parts of an algorithm", *_members(PARTS)),
        section("Base classes of components", *_members(bases)),
        section("What methods are given and return", *_members(others)),
    )


def undocumented() -> list[str]:
    """The classes, methods and functions without a docstring."""
    names = [name for name in fedq.extensions.__all__ if name not in LIBRARIES]
    members = [below for name in names for below in (public(name), *python.public(public(name)))]
    return [one.canonical_path for one in members if not one.is_attribute and one.docstring is None]


def public(name: str) -> griffe.Object:
    """A name of the module, where it is written."""
    member = python.load(MODULE).members[name]
    found = member.final_target if isinstance(member, griffe.Alias) else member
    assert isinstance(found, griffe.Object)
    return found


def _members(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        member = public(name)
        if isinstance(member, griffe.Attribute):
            told = prose(member.docstring.value if member.docstring else "")
            yield section(code(name), f"```python\n{name} = {member.value}\n```", told, level=3)
        else:
            yield python.describe(member, 3)
