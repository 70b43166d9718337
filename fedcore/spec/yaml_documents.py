"""Read and write YAML 1.2 documents of JSON values, with positions and limits.

PyYAML on its own reads YAML 1.1, where `1e-3` is text, `no` is false and `12:30` is 750; its C
parser overflows the stack on deep nesting; and merge keys, which YAML 1.2 has dropped, multiply
their contents. ruamel.yaml 0.19 reads YAML 1.2 and was tried: it takes 3.0 s instead of 0.66 s for
310 kB, and 0.9 ms instead of 0.1 ms for a short specification; it turns `2026-01-01` and `1_000`
into other values; and it limits neither aliases nor nesting (100,000 brackets end in a
RecursionError after 1.8 s). The resolvers and limits below would be needed with it, too.
"""

import re
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

MAX_DEPTH = 32
MAX_REPEATED = 500_000
"""Values that aliases repeat, each as often as it is repeated: about as many as a megabyte of text
can hold.
"""
_TAG = "tag:yaml.org,2002:"


class SourcePosition(NamedTuple):
    """A place in a text, in characters, counted from 1."""

    line: int
    column: int


class YamlError(ValueError):
    """A text that is no document, with what is wrong and, where one is known, its place."""

    def __init__(self, detail: str, place: SourcePosition | None = None) -> None:
        super().__init__(detail if place is None else f"line {place.line}, column {place.column}: {detail}")
        self.detail = detail
        self.place = place


def _construct_map(loader: Any, node: yaml.MappingNode) -> Iterator[dict[Hashable, Any]]:
    """A mapping; of a key that stands twice PyYAML would drop the first value without a word."""
    seen: dict[str, yaml.Node] = {}
    for key, _ in node.value:
        first = seen.setdefault(key.value, key) if isinstance(key, yaml.ScalarNode) else key
        if first is not key:
            detail = f"{key.value!r} stands here already, in line {first.start_mark.line + 1}"
            raise yaml.constructor.ConstructorError(None, None, detail, key.start_mark)
    yield from SafeConstructor.construct_yaml_map(loader, node)


class _Loader(yaml.CSafeLoader):
    """Plain scalars are null, booleans, decimal numbers or text; other tags are refused."""

    yaml_implicit_resolvers = {
        None: [
            (_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$")),
            (_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
            (_TAG + "int", re.compile(r"[-+]?[0-9]+$")),
            (_TAG + "float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")),
        ]
    }
    yaml_constructors = {
        _TAG + "null": SafeConstructor.construct_yaml_null,
        _TAG + "bool": SafeConstructor.construct_yaml_bool,
        _TAG + "int": lambda loader, node: int(loader.construct_scalar(node)),
        _TAG + "float": lambda loader, node: float(loader.construct_scalar(node)),
        _TAG + "str": SafeConstructor.construct_yaml_str,
        _TAG + "seq": SafeConstructor.construct_yaml_seq,
        _TAG + "map": _construct_map,
        None: SafeConstructor.construct_undefined,
    }


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would take for something else."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, _data: Any) -> bool:
        """True: write a value that occurs twice in full both times."""
        return True


def dump(value: Any) -> str:
    """A text that `load` reads as `value`: blocks that hold blocks over several lines, others on
    one.
    """
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )


def load(text: str, max_parts: int | None = None) -> Any:
    """The document in `text`.

    Raises YamlError, also beyond `max_parts`, `MAX_DEPTH` and `MAX_REPEATED`, or where a key stands
    twice in a block.
    """
    try:
        _check_extent(text, max_parts)
        return yaml.load(text, _Loader)  # noqa: S506 - it makes nothing but JSON's values
    except yaml.MarkedYAMLError as error:
        raise _marked(error, text.rstrip()) from error
    except (yaml.YAMLError, KeyError, ValueError) as error:
        raise error if isinstance(error, YamlError) else YamlError(" ".join(str(error).split())) from error


def locate(text: str, pointers: Iterable[str]) -> dict[str, SourcePosition]:
    """Where what each JSON pointer points at begins, a field with its name.

    Or else, where that is missing, the block that lacks it.

    `text` is one that `load` takes.
    """
    root = yaml.compose(text, _Loader)
    return {} if root is None else {pointer: _follow(root, pointer) for pointer in pointers}


def _follow(node: yaml.Node, pointer: str) -> SourcePosition:
    found = node
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        match node:
            case yaml.MappingNode(value=fields):
                step = next(((key, value) for key, value in fields if key.value == name), None)
            case yaml.SequenceNode(value=items) if name.isdecimal() and int(name) < len(items):
                step = items[int(name)], items[int(name)]
            case _:
                step = None
        if step is None:
            break
        found, node = step
    return _place(found.start_mark)


def _place(mark: Any) -> SourcePosition:
    return SourcePosition(mark.line + 1, mark.column + 1)


def _marked(error: yaml.MarkedYAMLError, text: str) -> YamlError:
    """Error of PyYAML with its position: the last character if something is missing at the end."""
    context, mark = f"{error.context}: " if error.context else "", error.problem_mark
    if mark is None:
        return YamlError(f"{context}{error.problem}")
    end = SourcePosition(text.count("\n") + 1, max(1, len(text) - text.rfind("\n") - 1))
    return YamlError(f"{context}{error.problem}", end if mark.index >= len(text) else _place(mark))


def _check_extent(text: str, max_parts: int | None) -> None:
    values = repeated = 0
    opened: list[tuple[str | None, int]] = []
    held: dict[str | None, int] = {}  # values by anchor
    for parts, event in enumerate(yaml.parse(text, _Loader)):
        match event:
            case CollectionStartEvent():
                opened.append((event.anchor, values))
                values += 1
            case CollectionEndEvent():
                anchor, before = opened.pop()
                held |= {anchor: values - before} if anchor else {}
            case ScalarEvent():
                values += 1
                held |= {event.anchor: 1} if event.anchor else {}
            case AliasEvent():
                values += held.get(event.anchor, 1)
                repeated += held.get(event.anchor, 1)
        excess = _excess(len(opened), repeated, parts, max_parts)
        if excess is not None:
            raise YamlError(excess, _place(event.start_mark))


def _excess(depth: int, repeated: int, parts: int, max_parts: int | None) -> str | None:
    if depth > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH} levels"
    if repeated > MAX_REPEATED:
        return f"aliases expand to more than {MAX_REPEATED:,} values"
    if max_parts is not None and parts > max_parts:
        return f"more than {max_parts:,} keys, values and ends of blocks: send it as JSON"
    return None
