"""Statements that a mechanism of `privacy` requires of the other parts of a run, and that parts declare.

A part is accepted beside `privacy` because it declares what the mechanism requires, not because
nothing forbids it.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property, partialmethod
from types import FunctionType
from typing import Any, Final

METHODS: Final = (FunctionType, property, classmethod, staticmethod, cached_property, partialmethod)


class Assurance(StrEnum):
    """A statement about a run, true or false of the neighbours that the mechanism names."""

    CHANGE_ALONE = "a client sends its change of the model and nothing else"
    OWN_DATA = "a client's change is made of its own data and of what was released with noise"
    ALL_ARRIVE = "every client that is drawn takes part"
    COHORT_SIZE = "a client's change is the same however many others are drawn"
    AS_CLIPPED = "a change reaches the server as it was clipped"
    NOISE_FIRST = "the server uses changes with their noise only"
    NOISY_GRADIENTS = "all that leaves a client is made of noisy gradients and of public numbers"
    ONE_GRADIENT = "what a client sends is made of one gradient of each step"
    ONE_SAMPLE = "the gradient of a sample is made of that sample alone"


Assurances = frozenset[Assurance]
EVERYTHING: Final = frozenset(Assurance)


def find_assurances(part: Any) -> Assurances:
    """Statements that the class of `part` declares as `assures`; none if it declares nothing.

    A class that overrides a method declares anew: what was true of the method that it replaces need
    not be true of its own.
    """
    classes = type(part).__mro__
    for place, member in enumerate(classes):
        if "assures" in vars(member):
            return frozenset(part.assures)
        if any(_overrides(name, value, classes[place + 1 :]) for name, value in vars(member).items()):
            break
    return frozenset()


def _overrides(name: str, value: object, bases: tuple[type, ...]) -> bool:
    """True of a method that replaces one of `bases`, constructors and the like apart."""
    return (
        isinstance(value, METHODS)
        and not (name.startswith("__") and name.endswith("__"))
        and any(name in vars(base) for base in bases)
    )
