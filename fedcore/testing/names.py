"""A check of names: each method and attribute of an author's class overrides one of FedQ's, or is used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedcore.testing.finding import CheckFailedError, author_files, class_node
from fedcore.testing.subject import Subject

CALLED_BY_PYTHON = {"property", "staticmethod", "classmethod", "cached_property", "override"}
"""Decorators that do not register a function anywhere."""
_SIMILARITY = 0.75


def every_method_overrides_one_or_is_used(subject: Subject) -> None:
    """Public methods and attributes of classes that extend FedQ's override something, or are used by
    the component's own code.
    """
    component = subject.component
    if component.__module__.partition(".")[0] == "fedcore":
        return
    used = _used_names(_sources(component))
    for member in _own_classes(component):
        for name, line in _declared(member):
            bases = member.__mro__[1:]
            if name in used or any(name in _names(base) for base in bases):
                continue
            known = {known for base in bases if _is_ours(base) for known in _names(base) if known[0] != "_"}
            near = get_close_matches(name, known - set(dir(BaseModel)), 1, _SIMILARITY)
            owner = next(base.__name__ for base in bases if _is_ours(base))
            raise CheckFailedError(
                f"public methods and attributes of {member.__name__} to be those of {owner}, or to be used",
                f"`{name}`, which overrides nothing and which nothing uses",
                f"a misspelt name; did you mean `{near[0]}`?"
                if near
                else f"a misspelt name, see help({owner}); your own helpers may begin with `_`",
                (sys.modules[member.__module__].__file__ or "", line),
            )


def _names(member: type[Any]) -> set[str]:
    """Names that a class defines or declares itself."""
    return {*vars(member), *vars(member).get("__annotations__", {})}


def _is_ours(member: type[Any]) -> bool:
    return member.__module__.partition(".")[0] == "fedcore"


def _own_classes(component: type[Any]) -> Iterator[type[Any]]:
    """Classes of the author's modules that extend classes of FedQ."""
    files = author_files(component)
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) in files]
    for module in modules:
        for value in list(vars(module).values()):
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and any(map(_is_ours, value.__mro__)):
                yield value


def _declared(member: type[Any]) -> Iterator[tuple[str, int]]:
    """Public methods and class attributes in the body of a class, each with its line; not its fields."""
    node = class_node(member)
    fields = getattr(member, "__dataclass_fields__", {}).keys() | getattr(member, "model_fields", {}).keys()
    for statement in [] if node is None else node.body:
        names: list[str] = []
        if isinstance(statement, ast.FunctionDef):
            decorators = {ast.unparse(each).rpartition(".")[2] for each in statement.decorator_list}
            names = [statement.name] if decorators <= CALLED_BY_PYTHON else []
        elif isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
        yield from (
            (name, statement.lineno)
            for name in names
            if name[0] != "_" and name not in fields and name not in ("kind", "model_config")
        )


def _sources(component: type[Any]) -> Iterator[Path]:
    """The author's files: of the package, or beside the module."""
    file = getattr(sys.modules.get(component.__module__), "__file__", None)
    if file is not None:
        package = component.__module__.rpartition(".")[0]
        yield from Path(file).parent.rglob("*.py") if package else Path(file).parent.glob("*.py")


def _used_names(files: Iterator[Path]) -> set[str]:
    """Names that are read anywhere in `files`, as a name or an attribute."""
    used: set[str] = set()
    for file in files:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                used.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
    return used
