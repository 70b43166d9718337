"""Arms as people name them: by name or by index."""

import re
from collections.abc import Mapping, Sequence

from api.problems import InvalidRequestError
from fedq.schemas import Flaw

TOLD = 20
"""Names of arms are listed to those who got one wrong, up to so many."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def arm_of(names: Mapping[str, int], wanted: str, pointer: str) -> int:
    """The index of the arm with this name or index; raises InvalidRequestError."""
    found = names.get(wanted, int(wanted) if _NUMBER.fullmatch(wanted) else -1)
    if found not in names.values():
        detail = f"must be an arm, by name or index: {listed(list(names))}; not {wanted!r}"
        raise InvalidRequestError([Flaw(pointer=pointer, detail=detail)])
    return found


def listed(names: Sequence[str]) -> str:
    """The arms, by name as long as they are few."""
    return ", ".join(names) if len(names) <= TOLD else f"0 to {len(names) - 1}"
