"""Ranges of fields: over these a study searches, and an algorithm may state those of its parameters."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import Block, Finite

Scalar = bool | int | float | str | None


class FloatRange(Block):
    """Real numbers from `low` to `high`."""

    example = {"low": 0.001, "high": 1.0, "log": True}

    kind: Literal["float"] = "float"
    low: Finite
    """Smallest value."""
    high: Finite
    """Largest value."""
    log: bool = False
    """Search uniformly in the logarithm."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        _check_ends(self)
        return self

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """Values that a specification must be valid with."""
        return self.low, self.high

    def contains(self, value: object) -> bool:
        """True if a trial may have this value."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return isfinite(value) and self.low <= value <= self.high


class IntRange(Block):
    """Whole numbers `low`, `low + step`, ..., at most `high`."""

    example = {"low": 1, "high": 9, "step": 2}

    kind: Literal["int"] = "int"
    low: int
    """Smallest value."""
    high: int
    """Largest value."""
    step: Annotated[int, Field(ge=1)] = 1
    """Distance between two values; 1 where `log` is true."""
    log: bool = False
    """Search uniformly in the logarithm."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.log and self.step != 1:
            raise ValueError(f"use either `log` or `step`; `log` has steps of 1, not {self.step}")
        if (self.high - self.low) % self.step:
            whole = self.high - (self.high - self.low) % self.step
            raise ValueError(f"`high` must be `low` plus a multiple of {self.step}; use {whole}")
        _check_ends(self)
        return self

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """Values that a specification must be valid with."""
        return self.low, self.high

    def contains(self, value: object) -> bool:
        """True if a trial may have this value."""
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0


class Choice(Block):
    """One of several values without an order."""

    example = {"values": [5, 10, 20]}

    kind: Literal["choice"] = "choice"
    values: Annotated[tuple[Scalar, ...], Field(fail_fast=True, min_length=2, max_length=100)]
    """Numbers, strings, true, false or null."""

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        if len({(type(value), value) for value in self.values}) != len(self.values):
            raise ValueError("`values` must be unique")
        return self

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """Values that a specification must be valid with: all."""
        return self.values

    def contains(self, value: object) -> bool:
        """True if a trial may have this value."""
        return any(type(one) is type(value) and one == value for one in self.values)


AnyRange = Annotated[FloatRange | IntRange | Choice, Field(discriminator="kind")]


def _check_ends(given: FloatRange | IntRange) -> None:
    if given.low >= given.high:
        raise ValueError(f"`low` must be less than `high`, not {given.low:g} and {given.high:g}")
    if given.log and given.low <= 0:
        raise ValueError(f"with `log`, `low` must be greater than 0, not {given.low:g}")
