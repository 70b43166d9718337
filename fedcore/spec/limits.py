"""Limits of a service on experiments: size, and models by import path, which run code on workers."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedcore.errors import SpecificationError
from fedcore.models.imported import Imported, check_allowed_model
from fedcore.spec import sweep
from fedcore.spec.experiment import ExperimentSpec
from fedcore.spec.problem import dimension


@dataclass(frozen=True, slots=True)
class ExperimentLimits:
    """The most of each.

    The settings of the same names, with `max_` before them, say how much that is.
    """

    runs: int
    """Arms times seeds."""
    rounds: int
    """Of one run."""
    parameters: int
    """Of a model."""


def refuse_excess(spec: ExperimentSpec, limits: ExperimentLimits, dim: int | None = None) -> None:
    """Raise SpecificationError if `spec` has too many runs, or some arm of it too many rounds or
    parameters.

    `dim` is the largest number of parameters of an arm where a code bundle is loaded. Without it, models
    of bundles that this process has not loaded are not counted.
    """
    arms = spec.arms()
    _hold("/sweep", "runs (arms times seeds)", "RUNS", len(arms) * len(spec.seeds), limits.runs)
    _hold("/rounds", "rounds", "ROUNDS", max(arm.spec.rounds for arm in arms), limits.rounds)
    if dim is not None:
        _hold("/problem/model", "parameters", "PARAMETERS", dim, limits.parameters)
        return
    problems = [arm.spec.problem for arm in arms] if "problem" in sweep.fields(spec.sweep) else [spec.problem]
    for problem in problems:
        if not problem.has_stand_ins:
            _hold("/problem/model", "parameters", "PARAMETERS", dimension(problem), limits.parameters)


def _hold(pointer: str, what: str, setting: str, asked: int, limit: int) -> None:
    if asked > limit:
        raise SpecificationError(
            pointer, f"{asked:,} {what} exceed the limit of {limit:,} of this service (FEDQ_MAX_{setting})"
        )


def check_allowed_models(spec: ExperimentSpec, allowed: Sequence[str]) -> None:
    """Raise SpecificationError if the model of some arm has an import path that none of the
    patterns `allowed` covers.
    """
    if not isinstance(spec.problem.model, Imported) and "problem" not in sweep.fields(spec.sweep):
        return
    for arm in spec.arms():
        if isinstance(arm.spec.problem.model, Imported):
            check_allowed_model(arm.spec.problem.model, allowed)
