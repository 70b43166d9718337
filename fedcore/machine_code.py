"""Functions in machine code, compiled by Numba at their first call and kept on disk.

The file lies beside the source (`__pycache__`), in NUMBA_CACHE_DIR or in the user's folder for
caches, and is for one processor, version of the source and of Numba.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[F], F]:
    """Compile the decorated function, as `numba.njit` with these options."""

    def decorate(function: F) -> F:
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:
            # Nowhere to write: each process compiles it.
            return njit(**options)(function)  # type: ignore[no-any-return]

    return decorate
