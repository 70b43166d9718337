"""Read JSON that users have written: a key that stands twice in an object is an error, as in YAML, and
not the end of its first value. The service, the command line and the readers of data use it.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

_TOKENS = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]')
"""Strings, those before a colon with it, and the ends of objects and arrays."""


class _RepeatedKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def load(text: str | bytes) -> Any:
    """The document in `text`, in UTF-8.

    Raises ValueError; json.JSONDecodeError, with the place, for what is not JSON or has a key twice.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=_object)
    except _RepeatedKeyError as error:
        raise _located(text, error.key) from None
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(key)
            seen.add(key)
    return made


def _located(text: str, key: str) -> json.JSONDecodeError:
    """The error that a key of an object of `text` stands twice, with the place of the second one."""
    plain = json.dumps(key, ensure_ascii=False)
    stood: list[bool] = []
    """True for each of the open objects and arrays in which it has stood."""
    for token in _TOKENS.finditer(text):
        match token[0][0]:
            case "{" | "[":
                stood.append(False)
            case "}" | "]":
                stood.pop()
            case _ if token[2] and (token[1] == plain or ("\\" in token[1] and json.loads(token[1]) == key)):
                if stood[-1]:
                    return json.JSONDecodeError(f"the key {key!r} stands twice", text, token.start())
                stood[-1] = True
    raise AssertionError(key)
