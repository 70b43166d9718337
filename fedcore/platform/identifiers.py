"""Identifiers as users write them: complete ones stand for themselves, anything else is looked up."""

import re

LAST = "@last"
"""Stands for the id of the newest record of the key's owner."""
_ID = re.compile(r"[a-z]+_[0-9a-z]{26}")


def is_id(given: str) -> bool:
    """True if this is a complete identifier."""
    return _ID.fullmatch(given) is not None
