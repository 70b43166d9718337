"""YAML documents, read as YAML 1.2 means them: values are those of JSON, and no document takes more than its share.

PyYAML on its own reads YAML 1.1, where `1e-3` is text, `no` is false and `12:30` is 750; its C parser overflows the stack
on deep nesting; and merge keys, which YAML 1.2 has dropped, multiply what they merge.
"""

import re
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import CollectionEndEvent, CollectionStartEvent

MAX_DEPTH = 32
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.CSafeLoader):
    """Plain scalars are null, booleans, decimal numbers or text; other tags are refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML reads it from the class
        None: [
            (_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$")),
            (_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
            (_TAG + "int", re.compile(r"[-+]?[0-9]+$")),
            (_TAG + "float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")),
        ]
    }
    yaml_constructors = {  # noqa: RUF012 - as above
        _TAG + "null": SafeConstructor.construct_yaml_null,
        _TAG + "bool": SafeConstructor.construct_yaml_bool,
        _TAG + "int": lambda loader, node: int(loader.construct_scalar(node)),
        _TAG + "float": lambda loader, node: float(loader.construct_scalar(node)),
        _TAG + "str": SafeConstructor.construct_yaml_str,
        _TAG + "seq": SafeConstructor.construct_yaml_seq,
        _TAG + "map": SafeConstructor.construct_yaml_map,
        None: SafeConstructor.construct_undefined,
    }


def load(text: str) -> Any:
    """The document in `text`; raises ValueError, also when it nests deeper than `MAX_DEPTH`."""
    try:
        _check_depth(text)
        return yaml.load(text, _Loader)  # noqa: S506 - it makes nothing but JSON's values
    except (yaml.YAMLError, KeyError) as error:
        raise ValueError(str(error)) from error


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
