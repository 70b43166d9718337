"""Identifiers that sort by age: 26 base-32 characters, 48 bits of milliseconds before 80 random ones (as ULID has it)."""

import secrets
from datetime import UTC, datetime, timedelta

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = 26
_RANDOM_BITS = 80


def identifiers(prefix: str, moment: datetime, count: int) -> list[str]:
    """`count` new identifiers of `moment`, in ascending order."""
    # One random number and its successors, so that identifiers made together keep their order; 79 bits leave room to count.
    first = (_milliseconds(moment) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
    return [f"{prefix}_{_encode(first + index)}" for index in range(count)]


def floor(prefix: str, moment: datetime) -> str:
    """The least identifier that one of `moment` can have; for moments before 1970, the least of all."""
    return f"{prefix}_{_encode(_milliseconds(moment) << _RANDOM_BITS)}"


def _milliseconds(moment: datetime) -> int:
    # The digits of a negative number would be those of its complement, and sort after all others.
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def _encode(number: int) -> str:
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))
