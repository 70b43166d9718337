"""A guard over the global random generators of PyTorch, NumPy and the standard library."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedcore.testing.finding import CheckFailedError, author_files, author_line

EXPECTED = "random numbers from keyed streams, `generator(seed, purpose, round, client)`"
CAUSE = (
    "results would depend on the order of calls and on whatever else draws in the process; use"
    " `generator` of fedq.extensions where seed and round are given, as to `Aggregator.of_round`, or draw"
    " in `Compressor.sample`; a client's rule draws by `context.drawn`, with `random` in its `needs()`"
)


@contextmanager
def no_global_randomness(component: type[Any]) -> Iterator[None]:
    """Raise CheckFailedError at the line of the component that draws from a global generator.

    PyTorch's operations are seen by their dispatch; NumPy's and Python's functions are replaced, in
    their modules and in the component's, while the block is executed.
    """
    with _replaced(component), _Watch(component):
        yield


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that draw from PyTorch's default generator."""

    def __init__(self, component: type[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._component = component

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None:
            _refuse(self._component, f"torch's default generator ({func.overloadpacket.__name__})")
        return func(*args, **given)


def _refuse(component: type[Any], what: str) -> None:
    place = author_line(component)
    if place is not None:
        raise CheckFailedError(EXPECTED, what, CAUSE, place)


@contextmanager
def _replaced(component: type[Any]) -> Iterator[None]:
    """Replace the functions that draw from a global generator by ones that refuse."""
    modules = [np.random, random, *_modules(component)]
    originals = [
        (module, name, value)
        for module in modules
        for name, value in list(vars(module).items())
        if _draws_globally(name, value)
    ]
    for module, name, value in originals:
        setattr(module, name, _refusing(component, value))
    try:
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)


def _draws_globally(name: str, value: Any) -> bool:
    if name.startswith("_"):
        return False
    owner = getattr(value, "__self__", None)
    return owner is _NUMPY or owner is _PYTHON or value is np.random.default_rng


_NUMPY = getattr(np.random.rand, "__self__", None)
_PYTHON = getattr(random.random, "__self__", None)


def _refusing(component: type[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    unseeded = function is np.random.default_rng

    def refuse(*args: Any, **given: Any) -> Any:
        if not unseeded or not (args or given):
            module = "random" if getattr(function, "__self__", None) is _PYTHON else "numpy.random"
            _refuse(component, f"{module}.{function.__name__}()")
        return function(*args, **given)

    return refuse


def _modules(component: type[Any]) -> list[Any]:
    import sys

    files = author_files(component)
    return [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) in files]
