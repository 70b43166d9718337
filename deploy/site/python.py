"""The reference of what Python programs may use: the client, the library, the theory.

Read off their sources, as they are written.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

from deploy.site.markup import code, literal, page, prose, section, table

ROOT = Path(__file__).parents[2]
CLIENT = ("fedq.client", "fedcore")
THEORY = ("fedcore.theory.quadratics",)


def pages() -> Iterator[tuple[str, str]]:
    """Names and texts of the pages."""
    yield "python.md", page("Python", *map(_module, CLIENT))
    yield "theory.md", page("Theory", _said(load("fedcore.theory")), *map(_module, THEORY))


def undocumented() -> list[str]:
    """The public names without a docstring."""
    return [
        member.canonical_path
        for name in (*CLIENT, *THEORY)
        for member in _all(load(name))
        if member.docstring is None
    ]


def _all(module: griffe.Object) -> Iterator[griffe.Object]:
    for member in public(module):
        yield member
        yield from public(member) if member.is_class else ()


@cache
def _sources() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    for package in ("fedq", "fedcore"):
        loader.load(package)
    loader.resolve_aliases()
    return loader.modules_collection


def load(name: str) -> griffe.Object:
    """The module with this name."""
    found = _sources()[name]
    assert isinstance(found, griffe.Object)
    return found


def public(owner: griffe.Object) -> Iterator[griffe.Object]:
    """Public names of a module or class: those in `__all__`, or else those defined in it."""
    for name, member in owner.members.items():
        listed = (
            name in owner.exports
            if owner.exports is not None
            else not member.is_alias and not name.startswith("_")
        )
        if listed and not member.is_module and not (owner.is_module and member.is_attribute):
            yield _written(member.final_target if isinstance(member, griffe.Alias) else member)


def _written(member: griffe.Object) -> griffe.Object:
    """The call that a method of the waiting client is made of: what it says is written there."""
    value = member.value if isinstance(member, griffe.Attribute) else None
    if not (isinstance(value, griffe.ExprCall) and str(value.function) in {"_now", "_each"}):
        return member
    asked = value.arguments[0]
    assert isinstance(asked, griffe.Expr)
    call = _sources()[asked.canonical_path]
    return call.final_target if isinstance(call, griffe.Alias) else call


def _module(name: str) -> str:
    module = load(name)
    return section(code(name), _example(_said(module)), *(describe(member, 3) for member in public(module)))


def describe(member: griffe.Object, level: int) -> str:
    """A section on a class with its attributes and methods, or on a function."""
    if not isinstance(member, griffe.Class):
        return section(code(member.name), _signature(member), _said(member), level=level)
    members = list(public(member))
    fields = [
        (code(below.name), code(below.annotation), literal(_text(below)))
        for below in members
        if isinstance(below, griffe.Attribute)
    ]
    methods = [describe(below, level + 1) for below in members if below.is_function]
    return section(
        code(member.name),
        _made(member),
        _said(member),
        table(("attribute", "type", "what"), fields),
        *methods,
        level=level,
    )


def _made(owner: griffe.Class) -> str:
    """Constructor of a class; none for exceptions, which users only catch."""
    made = owner.members.get("__init__")
    return _signature(made, owner.name) if isinstance(made, griffe.Function) and made.docstring else ""


def _signature(member: griffe.Object, name: str | None = None) -> str:
    if not isinstance(member, griffe.Function):
        return ""
    given = (
        member.signature(return_type=name is None, name=name).replace("(self, ", "(").replace("(self)", "()")
    )
    given = re.sub(r"AsyncGenerator\[(.+), None\]$", r"Iterator[\1]", given)
    return f"```python\n{given}\n```"


def _said(member: griffe.Object) -> str:
    return prose(_text(member))


def _text(member: griffe.Object) -> str:
    return member.docstring.value if member.docstring else ""


def _example(text: str) -> str:
    """A module's docstring; a program in it as a block of code."""
    prose_, _, program = text.partition("\n\nfrom ")
    return f"{prose_}\n\n```python\nfrom {program}\n```" if program else prose_
