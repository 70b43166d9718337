"""Runs that succeeded and are of little use: at chance level, or worse at their end than after their
first evaluation.

Their status says that they were computed; this says what a person should look at before using them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

OBJECTIVES = ("train_loss", "objective")
"""Measures of f(x), which training reduces; the first that a run has decides."""
MARGIN = 0.05
"""f(x) may end above its first value by this share of it: it fluctuates where training has converged
before the first evaluation.
"""


class WarningKind(StrEnum):
    """Reason to distrust a run that succeeded."""

    DIVERGED = "diverged"
    """The model or its loss was no longer finite."""
    AT_CHANCE = "at_chance"
    """The test accuracy is at most that of answering the most frequent label of the test data."""
    WORSE = "worse"
    """The training loss ended above its first value."""


class MeasureEnds(NamedTuple):
    """First and last value of a measure of a run."""

    first: float
    last: float


class RunWarning(NamedTuple):
    """A warning about one run, as stored with it."""

    kind: WarningKind
    detail: str
    """A sentence without its subject, the run."""


def find_warning(ends: Mapping[str, MeasureEnds], chance: float | None) -> RunWarning | None:
    """Return the warning about a run that did not diverge, with these first and last values of its
    measures; None if there is none.

    `chance` is the share of the most frequent test label, None if it is not known.
    """
    accuracy = ends.get("test_accuracy")
    if accuracy is not None and chance is not None and accuracy.last <= chance:
        return RunWarning(
            WarningKind.AT_CHANCE,
            f"ended at chance level: test accuracy {100 * accuracy.last:.2f} %, where the most frequent"
            f" label alone gives {100 * chance:.2f} %",
        )
    name = next((name for name in OBJECTIVES if name in ends), None)
    if name is None:
        return None
    first, last = ends[name]
    if last <= first + MARGIN * abs(first):
        return None
    words = name.replace("_", " ")
    return RunWarning(
        WarningKind.WORSE,
        f"ended worse than it began: {words} {first:.4g} at the first evaluation, {last:.4g} at the last",
    )


WORDS = {
    WarningKind.DIVERGED: ("diverged", "diverged"),
    WarningKind.AT_CHANCE: ("ended at chance level", "ended at chance level"),
    WarningKind.WORSE: ("ended worse than it began", "ended worse than they began"),
}
"""Words for one run, and for several."""


def summarise_warnings(counts: Mapping[WarningKind, int], runs: int) -> str | None:
    """Return how many of the `runs` of an arm or experiment have each warning, in one line; None if
    none has.
    """
    parts = [
        f"{count:,} of {runs:,} {'run' if runs == 1 else 'runs'} {words[count > 1]}"
        for kind, words in WORDS.items()
        if (count := counts.get(kind, 0))
    ]
    return "; ".join(parts) or None
