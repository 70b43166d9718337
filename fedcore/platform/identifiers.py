"""Identifiers as users write them: complete ones stand for themselves, anything else is looked up."""

import re

_LAST = re.compile(r"@last(?:~([0-9]{1,6}))?")
_ID = re.compile(r"[a-z]+_[0-9a-z]{26}")


def is_id(given: str) -> bool:
    """True if this is a complete identifier."""
    return _ID.fullmatch(given) is not None


def steps_back(given: str) -> int | None:
    """How many records of the key's owner are newer than the one that is meant: 0 for `@last`, n for
    `@last~n`; None for anything else.
    """
    found = _LAST.fullmatch(given)
    return int(found[1] or 0) if found else None
