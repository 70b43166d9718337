"""The default interval of evaluations, by counted work, so that it is the same on every machine."""

from math import gcd

from fedcore.spec import ExperimentSpec
from fedcore.spec.problem import dimension
from fedcore.spec.search import Halving
from fedcore.spec.sweep import list_paths
from fedq.planning.draws import RunCounts, play_draws
from fedq.planning.work import count_scored, weigh_gradient

INTERVALS = (1, 2, 5, 10, 20, 50, 100)
SHARE = 0.2
"""Share of the training's work that evaluations may take."""
NEGLIGIBLE = 2e10
"""Samples scored in a run times parameters that need no longer interval: a few seconds at most for
dense networks.
"""
LEAST_ROWS = 5
"""Evaluations of a run that are left, so that it has a curve."""
PLAYED_ROUNDS = 50
"""Rounds, of all arms together, whose clients are drawn to count a round's work."""
COUNTED = {"problem", "local", "participation", "systems", "asynchrony", "rounds"}
"""Fields that the work depends on."""


def default_interval(spec: ExperimentSpec) -> int:
    """The `evaluation.every` of a new experiment without one: the smallest of INTERVALS with which
    the evaluations of each arm take at most SHARE of its training's work, or the largest that is
    possible.

    It divides `rounds`, so that the experiment can be extended, and the first rung of a search. It
    is 1 where the work is NEGLIGIBLE, under early stopping, whose patience counts evaluations, for
    sweeps over evaluations, exact problems, and components that this process does not know.
    """
    swept = {path.partition(".")[0] for path in list_paths(spec.sweep)}
    if spec.early_stopping is not None or swept & {"evaluation", "early_stopping"}:
        return 1
    rounds = spec.rounds
    if isinstance(spec.search, Halving):
        rounds = gcd(rounds, spec.search.min_rounds)
    arms = [arm.spec for arm in spec.arms()] if swept & COUNTED else [spec]
    if any(arm.has_stand_ins for arm in arms):
        return 1
    wanted = max(map(_wanted, arms, play_draws(arms, PLAYED_ROUNDS)))
    divisor = gcd(rounds, *(arm.rounds for arm in arms))
    possible = [
        every for every in INTERVALS if divisor % every == 0 and every * LEAST_ROWS <= spec.rounds
    ] or [1]
    return next((every for every in possible if every >= wanted), possible[-1])


def _wanted(spec: ExperimentSpec, played: RunCounts) -> float:
    """The interval with which evaluations take SHARE of the training's work."""
    scored = count_scored(spec)
    if spec.problem.model is None or scored * spec.rounds * dimension(spec.problem) <= NEGLIGIBLE:
        return 1.0
    return scored / (SHARE * weigh_gradient(spec) * max(1.0, played.samples / spec.rounds))
