"""Cost of reaching a target value: rounds, bytes and time of each arm.

A run that has not reached the target is censored: its cost is known to be above what it spent.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple, get_args

from fedcore.platform.status import ENDED
from fedcore.statistics import summary
from fedcore.statistics.series import Series
from fedq.results.best_arms import best_arms
from fedq.results.curves import first_reaching, megabytes
from fedq.results.presentation import ComparedFigure, TargetCost
from fedq.results.summaries import MeasuredRun, comparable_only, estimate_mean, has_ended, have_data_of
from fedq.schemas import ArmResult, BestArms, Estimate, Results, Target, TargetResult

COLUMNS = ("bytes_up", "bytes_down", "simulated_seconds", "seconds")
"""Columns of each round that are needed besides the metric of the target."""


class Cost(NamedTuple):
    """Rounds, bytes and time of a run until it reached the target; if it did not, of all its rounds."""

    reached: bool
    rounds: float
    megabytes: float
    simulated_seconds: float | None
    seconds: float


def cost_of(series: Series, target: Target) -> Cost:
    """Return the cost of a run with these curves."""
    better = summary.better_of(target.metric)
    assert better is not None
    round = first_reaching(series, target.metric, target.value, better)
    last = len(series.columns["seconds"]) if round is None else round
    clock = float(series.columns["simulated_seconds"][last - 1])
    return Cost(
        round is not None,
        float(last),
        float(megabytes(series)[last - 1]),
        clock if isfinite(clock) else None,
        float(series.columns["seconds"][:last].sum()),
    )


def with_target(
    results: Results,
    arms: Sequence[Sequence[MeasuredRun]],
    series: Mapping[str, Series],
    target: Target,
    by: ComparedFigure,
    baseline: int | None,
    *,
    confirmed: bool,
) -> Results:
    """Return the results with the cost of reaching the target for each arm, given by its runs, and with
    the arms that may be the best by the cost `by`, if it is one.

    `series` contain the metric of the target and the `COLUMNS`.
    """
    costs = [{run.id: cost_of(series[run.id], target) for run in arm if run.id in series} for arm in arms]
    told = [
        result.model_copy(update={"to_target": _arm(arm, of_arm)})
        for result, arm, of_arm in zip(results.arms, arms, costs, strict=True)
    ]
    changes: dict[str, Any] = {"target": target, "arms": told}
    if by in get_args(TargetCost):
        changes["best_arms"] = _best(told, arms, costs, target, by, baseline, confirmed=confirmed)
    return results.model_copy(update=changes)


def restricted(
    costs: Sequence[Mapping[int, float]], unreached: Sequence[Mapping[int, float]]
) -> tuple[list[dict[int, float]], float]:
    """Return the cost of each arm by seed up to a horizon, and the horizon: the least that a run spent
    which did not reach the target, infinite if all did.

    `costs` are of the runs that reached it, `unreached` what the others spent. The cost of a run with
    the cost T is min(T, horizon), which is known of all of them, so that its mean is that of the
    distribution of T below the horizon (the restricted mean: Irwin 1949; Royston and Parmar 2013).
    """
    horizon = min((spent for of_arm in unreached for spent in of_arm.values()), default=inf)
    return [
        {seed: min(cost, horizon) for seed, cost in {**reached, **others}.items()}
        for reached, others in zip(costs, unreached, strict=True)
    ], horizon


def _arm(arm: Sequence[MeasuredRun], costs: Mapping[str, Cost]) -> TargetResult:
    reached = sum(cost.reached for cost in costs.values())
    missed = sum(run.status in ENDED and not (run.id in costs and costs[run.id].reached) for run in arm)
    return TargetResult(
        runs=len(arm),
        reached=reached,
        missed=missed,
        **{name: _estimate(list(costs.values()), name) for name in Cost._fields if name != "reached"},
    )


def _estimate(costs: Sequence[Cost], name: str) -> Estimate | None:
    """Return the mean of a cost; a lower bound, without deviation and interval, if it is not known of all."""
    known = {place: value for place, cost in enumerate(costs) if (value := getattr(cost, name)) is not None}
    found = estimate_mean(known)
    if found is None or all(cost.reached for cost in costs):
        return found
    return found.model_copy(update={"std": None, "low": None, "high": None})


def _best(
    results: Sequence[ArmResult],
    arms: Sequence[Sequence[MeasuredRun]],
    costs: Sequence[Mapping[str, Cost]],
    target: Target,
    by: ComparedFigure,
    baseline: int | None,
    *,
    confirmed: bool,
) -> BestArms | None:
    """Return the arms that may be the best by a cost of the runs that have ended and were not stopped by a
    search; None if no run reached the target.
    """
    reached: list[dict[int, float]] = [{} for _ in arms]
    unreached: list[dict[int, float]] = [{} for _ in arms]
    diverged: list[list[int]] = [[] for _ in arms]
    for place, (arm, of_arm) in enumerate(zip(arms, costs, strict=True)):
        for run in arm:
            cost = of_arm.get(run.id)
            value = None if cost is None else getattr(cost, by)
            if cost is None or value is None:
                continue
            if run.diverged_round is not None and not cost.reached:
                diverged[place].append(run.seed)
            elif has_ended(run):
                (reached if cost.reached else unreached)[place][run.seed] = value
    if not any(reached):
        return None
    figures, horizon = restricted(reached, unreached)
    alike = have_data_of([arm[0].settings for arm in arms], baseline or 0)
    return best_arms(
        [one.name for one in results],
        comparable_only(figures, alike),
        diverged,
        target.metric,
        by,
        baseline,
        target=target.value,
        horizon=horizon,
        confirmed=confirmed,
        references=[place for place, one in enumerate(results) if one.reference],
    )
