"""Checks of `search` and `early_stopping` against measures, their frequency and the arms."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from fedcore.algorithms import ALGORITHMS
from fedcore.block import kind_of
from fedcore.data.datasets import data_shape
from fedcore.data.exact import ExactProblem
from fedcore.errors import SpecificationError
from fedcore.measures import MEASURES, of_population
from fedcore.measures.base import MeasureInfo
from fedcore.spec.evaluation import Evaluation
from fedcore.spec.search import Cost, ExactFigure, Halving, Judged, rungs
from fedcore.spec.sweep import paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedcore.spec.experiment import ExperimentSpec


def check_early_stopping(spec: ExperimentSpec) -> None:
    """Raises SpecificationError where an arm's early stopping waits for what never comes."""
    rule = spec.early_stopping
    if rule is None:
        return
    _check_metric(rule, "/early_stopping/metric", spec)
    if rule.min_rounds >= spec.rounds:
        detail = f"must be less than `rounds`, {spec.rounds}, not {rule.min_rounds}"
        raise SpecificationError("/early_stopping/min_rounds", detail)
    cadence = evaluated_every(rule, spec.evaluation)
    if rule.patience is not None and rule.patience * cadence >= spec.rounds:
        most = (spec.rounds - 1) // cadence
        detail = (
            f"{rule.patience} evaluations, one every {cadence} rounds, take until round {spec.rounds} or"
            f" longer; use at most {most}"
        )
        raise SpecificationError(
            "/early_stopping/patience",
            detail if most else f"{rule.metric} is evaluated only in the last round",
        )


def check_search(spec: ExperimentSpec, arms: Sequence[ExperimentSpec]) -> None:
    """Raises SpecificationError where the search does not fit the arms of `spec`."""
    search = spec.search
    if search is None:
        return
    for path in sorted(paths(spec.sweep)):
        if path == "rounds" or path.split(".")[0] == "evaluation":
            raise SpecificationError(
                f"/sweep/{path}", "with `search`, all arms must have the same rounds and evaluations"
            )
    for arm in arms:
        _check_metric(search, "/search/metric", arm)
    _check_rungs(search, spec)


def evaluated_every(judged: Judged, evaluation: Evaluation) -> int:
    """Rounds from one evaluation of the metric to the next."""
    if judged.metric in get_args(Cost):
        return 1
    return (
        (evaluation.population_every or evaluation.every)
        if of_population(judged.metric)
        else evaluation.every
    )


def _check_rungs(search: Halving, spec: ExperimentSpec) -> None:
    arms, steps = spec.arm_count, rungs(search.min_rounds, search.eta, spec.rounds)
    if arms < search.eta:
        smaller = f", or use at most {arms}" if arms >= 2 else ""
        raise SpecificationError(
            "/search/eta",
            f"one in {search.eta} of {arms} arms leaves none; sweep over at least {search.eta} arms{smaller}",
        )
    if not steps:
        detail = (
            f"{search.eta} times as many rounds as the first rung, {search.min_rounds}, exceed `rounds`,"
            f" {spec.rounds}"
        )
        raise SpecificationError(
            "/search/min_rounds",
            f"{detail}; use at most {spec.rounds // search.eta}" if spec.rounds >= search.eta else detail,
        )
    if arms < search.eta ** len(steps):
        detail = (
            f"with {arms} arms, none is left after rungs at rounds {', '.join(map(str, steps))}, where one in"
            f" {search.eta} is promoted"
        )
        raise SpecificationError(
            "/search/min_rounds", f"{detail}; use at least {_least(search, arms, spec.rounds)}"
        )
    cadence = evaluated_every(search, spec.evaluation)
    if search.min_rounds % cadence:
        nearest = search.min_rounds + cadence - search.min_rounds % cadence
        detail = (
            f"must be a multiple of {cadence}, the interval of evaluations of {search.metric}, not"
            f" {search.min_rounds}; use {nearest}"
        )
        raise SpecificationError("/search/min_rounds", detail)


def _least(search: Halving, arms: int, rounds: int) -> int:
    """The first rung from which there are no more rungs than arms allow."""
    most = 0
    while search.eta ** (most + 1) <= arms:
        most += 1
    return int(rounds // search.eta ** (most + 1)) + 1


def _check_metric(judged: Judged, pointer: str, spec: ExperimentSpec) -> None:
    reason = _unmeasured(judged.metric, spec)
    if reason:
        raise SpecificationError(pointer, reason)


def _unmeasured(metric: str, spec: ExperimentSpec) -> str | None:
    """Why no round has this metric."""
    if metric in MEASURES:
        return _missing(MEASURES[metric], spec)
    if metric in get_args(ExactFigure) and not isinstance(spec.problem.dataset, ExactProblem):
        return (
            f"only quadratic and least-squares problems have {metric}; use a measure of `evaluation.measures`"
        )
    if metric == "simulated_seconds" and not spec.systems.devices:
        return "simulated_seconds requires `systems.devices`"
    return None


def _missing(measure: MeasureInfo, spec: ExperimentSpec) -> str | None:
    """Why no round has this measure."""
    dataset, metric = spec.problem.dataset, measure.name
    exact = isinstance(dataset, ExactProblem)
    if metric not in spec.evaluation.measures:
        return f"{metric} is not measured; add it to `evaluation.measures`"
    if exact and measure.needs:
        return f"a {dataset.kind} problem has no {metric}; use train_loss, suboptimality or distance"
    if not exact and measure.needs == "classes" and not data_shape(dataset).classes:
        return f"real labels have no {metric}; use a loss"
    if not measure.offered_by(type(spec.algorithm)):
        kinds = " or ".join(kind_of(member) for member in ALGORITHMS if measure.offered_by(member))
        return f"{spec.algorithm.kind} has no {metric}; use another metric, or {kinds}"
    return None
