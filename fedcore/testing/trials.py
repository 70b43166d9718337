"""Checks that components of all families pass in whole runs, each family in experiments of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fedcore.testing import runs
from fedcore.testing.subject import Subject

Check = Callable[[Subject], None]


class RunChecks(NamedTuple):
    """Checks in runs of a few rounds."""

    randomness: Check
    engines: Check
    resumption: Check


class QuadraticChecks(NamedTuple):
    """Checks in longer runs on quadratics."""

    descent: Check
    memory: Check


def checks_in_runs(makes: Callable[[Subject], Iterable[runs.Make]]) -> RunChecks:
    """The checks in the experiments that `makes` returns; there may be none for a component."""

    def randomness_is_keyed(subject: Subject) -> None:
        """Nothing is drawn from a global random generator during a run."""
        for make in makes(subject):
            runs.uses_keyed_randomness(subject, make)

    def engines_agree(subject: Subject) -> None:
        """Engines that accept the component all agree to 1e-9 in float64."""
        for make in makes(subject):
            runs.engines_agree(make)

    def a_resumed_run_is_bit_identical(subject: Subject) -> None:
        """A run resumed at any round ends with the same bits."""
        for make in makes(subject):
            runs.resumes_at_every_round(make)

    return RunChecks(randomness_is_keyed, engines_agree, a_resumed_run_is_bit_identical)


def checks_on_quadratics(
    make_of: Callable[[Subject], runs.Make | None], turned: Callable[[Subject], Any] = lambda _: None
) -> QuadraticChecks:
    """The checks in an experiment on strongly convex quadratics, if there is one for a component; `turned`
    gives the place of a step in the wrong direction.
    """

    def a_run_on_quadratics_descends(subject: Subject) -> None:
        """A run with a small step size stays finite, and ends at a lower loss than it begins."""
        if (make := make_of(subject)) is not None:
            runs.descends(make, lambda: turned(subject))

    def memory_does_not_grow(subject: Subject) -> None:
        """Checkpoints and memory do not grow over rounds."""
        if (make := make_of(subject)) is not None:
            runs.keeps_no_growing_state(make)

    return QuadraticChecks(a_run_on_quadratics_descends, memory_does_not_grow)
