"""Importance of settings: how much of the differences between arms each of them explains."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

MOST_LEVELS = 8
"""Maximum number of levels: more numbers are compared as this many groups of neighbours."""
_ROUNDING = 1e-9
"""Squares may sum to this share more than there are."""


class SettingShare(NamedTuple):
    """How much a setting explains."""

    path: str
    share: float | None
    """Share of the variance; None where it cannot be told apart from chance."""


class _Effect(NamedTuple):
    squares: float
    freedom: int


def rank_settings(
    settings: Mapping[str, Sequence[Hashable]], figures: Sequence[float | None]
) -> list[SettingShare]:
    """Return the share of the variance of `figures` that each setting explains alone, most important
    first; an arm without a figure does not count.

    The share is omega squared of an analysis of variance with main effects, about 0 for a setting
    without influence:

        omega^2 = (SS_effect - df_effect * MS_error) / (SS_total + MS_error)

    What the settings do not explain together is the error; where they have as many values as there
    are arms, what one of them does not explain.
    """
    known = [(place, figure) for place, figure in enumerate(figures) if figure is not None]
    # The squares of large numbers would be infinite.
    scale = max((abs(figure) for _, figure in known), default=0.0) or 1.0
    values = [figure / scale for _, figure in known]
    total = _Effect(_squares(values), len(values) - 1)
    effects = {
        path: _effect(_levels([column[place] for place, _ in known]), values, total)
        for path, column in settings.items()
    }
    left = _without(total, *effects.values())
    estimable = left.freedom > 0 and left.squares > -_ROUNDING * total.squares
    found = [
        SettingShare(path, _omega_squared(effect, left if estimable else _without(total, effect), total))
        for path, effect in effects.items()
    ]
    return sorted(found, key=lambda one: -1 if one.share is None else one.share, reverse=True)


def distinguishing_settings(settings: Mapping[str, Sequence[Hashable]]) -> list[str]:
    """Return the settings that tell arms apart: all but options that follow from the kind of their block,
    which say no more than the kind.
    """
    return [
        path
        for path, values in settings.items()
        if not any(_is_option(path, kind) and _follows(values, kinds) for kind, kinds in settings.items())
    ]


def _is_option(path: str, kind: str) -> bool:
    """True for the options of a block, beside its kind."""
    return path != kind and kind.endswith(".kind") and path.startswith(kind.removesuffix("kind"))


def _follows(values: Sequence[Hashable], kinds: Sequence[Hashable]) -> bool:
    """True if arms of the same kind have the same value."""
    known = dict(zip(kinds, values, strict=True))
    return all(value == known[kind] for kind, value in zip(kinds, values, strict=True))


def _levels(values: Sequence[Hashable]) -> list[Hashable]:
    """Return the values themselves, or the groups that they belong to."""
    # True is 1 in Python.
    distinct = {(type(value) is bool, value) for value in values}
    numbers = sorted(value for value in set(values) if isinstance(value, int | float))
    if len(numbers) <= MOST_LEVELS or len(numbers) < len(distinct):
        return [(type(value) is bool, value) for value in values]
    group = {value: place * MOST_LEVELS // len(numbers) for place, value in enumerate(numbers)}
    return [group[value] for value in values if isinstance(value, int | float)]


def _effect(levels: Sequence[Hashable], values: Sequence[float], total: _Effect) -> _Effect:
    """Return the squares and degrees of freedom between the levels."""
    places = {level: place for place, level in enumerate(dict.fromkeys(levels))}
    ordered = sorted(zip((places[level] for level in levels), values, strict=True))
    within = sum(
        _squares([value for _, value in members]) for _, members in groupby(ordered, lambda pair: pair[0])
    )
    return _Effect(total.squares - within, len(places) - 1)


def _without(total: _Effect, *effects: _Effect) -> _Effect:
    return _Effect(
        total.squares - sum(effect.squares for effect in effects),
        total.freedom - sum(effect.freedom for effect in effects),
    )


def _omega_squared(effect: _Effect, error: _Effect, total: _Effect) -> float | None:
    if effect.freedom < 1 or error.freedom < 1 or total.squares == 0:
        return None
    noise = max(error.squares, 0.0) / error.freedom
    return max(0.0, (effect.squares - effect.freedom * noise) / (total.squares + noise))


def _squares(values: Sequence[float]) -> float:
    """Sum of squared distances from the mean."""
    mean = sum(values) / len(values) if values else 0.0
    return sum((value - mean) ** 2 for value in values)
