"""Arguments of cached functions that need not be hashable, or whose hash would take long."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CacheKey(Generic[V]):
    """A value, which caches compare by its `key` alone. A cache keeps the values in it alive, so that
    the `id` of one may be its key.
    """

    value: V = field(compare=False)
    key: Hashable
