"""The default interval of evaluations, by counted work, so that it is the same on every machine."""

from math import gcd

from fedcore.data.exact import ExactProblem
from fedcore.measures import measure_named, names_of, of_population
from fedcore.models.dense import Linear, Logistic, Mlp
from fedcore.spec import ExperimentSpec
from fedcore.spec.evaluation import SAMPLE_SIZE
from fedcore.spec.problem import Problem, dimension
from fedcore.spec.search import Halving
from fedcore.spec.sweep import paths
from fedq.planning.estimates import trained_samples

INTERVALS = (1, 2, 5, 10, 20, 50, 100)
SHARE = 0.2
"""Of the training's work that evaluations may take."""
GRADIENT = 3.0
"""Work of a sample's gradient; scoring it is 1, a backward pass twice that."""
DENSE_GRADIENT = 1.0
"""The same for dense networks, which machine code trains in 0.2 to 2.8 times what PyTorch takes to
score a sample (docs/performance.md).
"""
NEGLIGIBLE = 2e10
"""Samples scored in a run times parameters that need no longer interval: a few seconds at most for
dense networks.
"""
LEAST_ROWS = 5
"""Evaluations of a run that are left, so that it has a curve."""
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
    swept = {path.partition(".")[0] for path in paths(spec.sweep)}
    if spec.early_stopping is not None or swept & {"evaluation", "early_stopping"}:
        return 1
    rounds = spec.rounds
    if isinstance(spec.search, Halving):
        rounds = gcd(rounds, spec.search.min_rounds)
    arms = [arm.spec for arm in spec.arms()] if swept & COUNTED else [spec]
    if any(arm.has_stand_ins for arm in arms):
        return 1
    wanted = max(map(_wanted, arms))
    divisor = gcd(rounds, *(arm.rounds for arm in arms))
    possible = [
        every for every in INTERVALS if divisor % every == 0 and every * LEAST_ROWS <= spec.rounds
    ] or [1]
    return next((every for every in possible if every >= wanted), possible[-1])


def _wanted(spec: ExperimentSpec) -> float:
    """The interval with which evaluations take SHARE of the training's work."""
    scored, model = _scored(spec), spec.problem.model
    if model is None or scored * spec.rounds * dimension(spec.problem) <= NEGLIGIBLE:
        return 1.0
    gradient = DENSE_GRADIENT if isinstance(model, Linear | Logistic | Mlp) else GRADIENT
    return scored / (SHARE * gradient * max(1.0, trained_samples(spec)))


def _scored(spec: ExperimentSpec) -> float:
    """Samples scored in an evaluation; a gradient counts as GRADIENT of them."""
    if isinstance(spec.problem.dataset, ExactProblem):
        return 0.0
    samples, evaluation = spec.problem.dataset.shape().train_samples, spec.evaluation
    names, scored = names_of(evaluation.measures), 0.0
    if "train_loss" in names:
        scored += min(samples, SAMPLE_SIZE) if evaluation.training_loss == "sample" else samples
    if any(_of_tests(name) for name in names):
        scored += _test_samples(spec.problem)
    if evaluation.population_every is None and any(map(of_population, names)):
        # The gradient, or the personal model, of every client.
        scored += GRADIENT * samples
    return scored


def _of_tests(name: str) -> bool:
    measure = measure_named(name)
    return name.startswith("test_") or (measure is not None and measure.needs == "tests")


def _test_samples(problem: Problem) -> float:
    shape, held_out = problem.dataset.shape(), getattr(problem.partition, "hold_out", None)
    return shape.test_samples if held_out is None else held_out * shape.train_samples
