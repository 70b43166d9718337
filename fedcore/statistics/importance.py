"""Importance of settings: how much each of them decides which arms come to the top.

PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023) compares how often the top arms have a value of a setting
with how often all arms have it. Arms that are useless do not count, however much they differ. Optuna's
evaluator needs a study, with a range for each setting; here arms have few values of each.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

TOP_SHARE = 0.1
"""The share of the arms that are the top, as in Optuna."""
LEAST_TOP = 2
"""Number of arms in the top, at least."""
MOST_LEVELS = 8
"""Maximum number of levels: more numbers are compared as this many groups of neighbours."""


class SettingShare(NamedTuple):
    """How much a setting decides."""

    path: str
    share: float | None
    """Share from 0 to 1; None where it cannot be told apart from chance."""
    among: str | None = None
    """The kinds of block that have this option, among whose arms it was found; None for all arms."""


def rank_settings(
    settings: Mapping[str, Sequence[Hashable]], figures: Sequence[float | None], *, higher_is_better: bool
) -> list[SettingShare]:
    """Return how much each setting alone decides which arms are in the top, most important first; an arm
    without a figure does not count.

    Of n arms t are in the top: the best TOP_SHARE, and those that are as good as the last of them. With
    p_l and q_l the shares of level l among the top and among all arms, Pearson's divergence of PED-ANOVA is

        D = sum_l q_l (p_l / q_l - 1)^2

    which is n/t - 1 if one level holds the top and no other arm. The share is V = D / (n/t - 1), which is
    Cramer's V squared, corrected for its mean (L - 1)/(n - 1) where L levels have no influence:

        (V - (L - 1)/(n - 1)) / (1 - (L - 1)/(n - 1)), at least 0

    An option that only some kinds of its block have is judged among the arms of these kinds.
    """
    known = [place for place, figure in enumerate(figures) if figure is not None]
    found = [_share_of(path, settings, known, figures, higher_is_better) for path in settings]
    return sorted(found, key=lambda one: -1 if one.share is None else one.share, reverse=True)


def _share_of(
    path: str,
    settings: Mapping[str, Sequence[Hashable]],
    known: Sequence[int],
    figures: Sequence[float | None],
    higher_is_better: bool,
) -> SettingShare:
    values, among = settings[path], None
    kind = next((other for other in settings if _is_option(path, other)), None)
    having = [place for place in known if values[place] is not None]
    if kind is not None and len(having) < len(known):
        known, among = having, ", ".join(sorted({str(settings[kind][place]) for place in having}))
    sign = -1 if higher_is_better else 1
    costs = [sign * (figures[place] or 0.0) for place in known]
    return SettingShare(path, _corrected(_levels([values[place] for place in known]), costs), among)


def _corrected(levels: Sequence[Hashable], costs: Sequence[float]) -> float | None:
    """Return the share of a setting with these levels; the lower the cost of an arm, the better."""
    arms = len(costs)
    if arms < 2:
        return None
    last = sorted(costs)[min(max(LEAST_TOP, ceil(TOP_SHARE * arms)), arms) - 1]
    top = Counter(level for level, cost in zip(levels, costs, strict=True) if cost <= last)
    chance, count = (len(set(levels)) - 1) / (arms - 1), top.total()
    if count == arms or not 0 < chance < 1:
        return None
    shares = ((top[level] / count, size / arms) for level, size in Counter(levels).items())
    divergence = sum((p - q) ** 2 / q for p, q in shares)
    return max(0.0, (divergence / (arms / count - 1) - chance) / (1 - chance))


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
