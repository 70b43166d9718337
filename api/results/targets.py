"""Cost of reaching a target value: rounds, bytes and time of each arm, over the runs that reached
it.
"""

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from api.http.problems import InvalidDocumentError
from api.results.summaries import ResultRows
from fedcore.platform.status import ENDED
from fedcore.platform.store.tables import RunRecord
from fedcore.spec.validation import not_among
from fedcore.statistics import significance, summary
from fedcore.statistics.series import Series
from fedq.results.curves import first_reaching, megabytes
from fedq.results.summaries import comparable_only, estimate_mean, have_data_of, make_difference, metric_names
from fedq.schemas import Difference, Estimate, Results, Target, TargetResult

COLUMNS = ("bytes_up", "bytes_down", "simulated_seconds", "seconds")
"""Columns of each round that are needed besides the metric of the target."""
_TARGET = re.compile(r"([\w/]+):([-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)", re.ASCII)


class _Cost(NamedTuple):
    """Cost of one run."""

    rounds: float
    megabytes: float
    simulated_seconds: float | None
    seconds: float


def target_of(text: str) -> Target:
    """Parse a target such as `test_accuracy:0.9`; raises InvalidDocumentError."""
    found = _TARGET.fullmatch(text)
    if found is None or not isfinite(float(found[2])):
        raise InvalidDocumentError.at(
            "?target", f"must be METRIC:VALUE, e.g. test_accuracy:0.9, not {text!r}"
        )
    if summary.better_of(found[1]) is None:
        metrics = list(filter(summary.better_of, metric_names()))
        raise InvalidDocumentError.at("?target", f"the metric {not_among(found[1], metrics)}")
    return Target(metric=found[1], value=float(found[2]))


def with_target(results: Results, rows: ResultRows, target: Target) -> Results:
    """Return the results with the cost of reaching the target for each arm.

    `rows` contain its metric and the `COLUMNS`.
    """
    arms = [[run for run in rows.runs if run.arm == arm.index] for arm in results.arms]
    found = _to_target(arms, rows.series, target, results.baseline)
    told = [arm.model_copy(update={"to_target": one}) for arm, one in zip(results.arms, found, strict=True)]
    return results.model_copy(update={"target": target, "arms": told})


def _to_target(
    arms: Sequence[Sequence[RunRecord]], series: Mapping[str, Series], target: Target, baseline: int
) -> list[TargetResult]:
    costs = [
        {run.seed: cost for run in arm if (cost := _cost(series.get(run.id), target)) is not None}
        for arm in arms
    ]
    alike = have_data_of([arm[0].settings for arm in arms], baseline)
    whole = [
        len(of_arm) == len(arm) and all(run.diverged_round is None for run in arm)
        for of_arm, arm in zip(costs, arms, strict=True)
    ]
    figures = {name: _compared(costs, name, whole, baseline, alike) for name in _Cost._fields}
    return [
        TargetResult(
            runs=len(arm),
            reached=len(costs[index]),
            missed=sum(run.status in ENDED and run.seed not in costs[index] for run in arm),
            **{name: estimates[index][0] for name, estimates in figures.items()},
            **{
                f"{name}_difference": estimates[index][1]
                for name, estimates in figures.items()
                if name != "seconds"
            },
        )
        for index, arm in enumerate(arms)
    ]


def _cost(series: Series | None, target: Target) -> _Cost | None:
    """Return the cost of a run with these curves, None if it has not reached the target."""
    better = summary.better_of(target.metric)
    assert better is not None
    round = None if series is None else first_reaching(series, target.metric, target.value, better)
    if series is None or round is None:
        return None
    clock, spent = (
        float(series.columns["simulated_seconds"][round - 1]),
        float(series.columns["seconds"][:round].sum()),
    )
    return _Cost(float(round), float(megabytes(series)[round - 1]), clock if isfinite(clock) else None, spent)


def _compared(
    costs: Sequence[Mapping[int, _Cost]],
    name: str,
    whole: Sequence[bool],
    baseline: int,
    comparable: Sequence[bool],
) -> list[tuple[Estimate | None, Difference | None]]:
    """Return one cost over the seeds of each arm, if comparable compared with the baseline; `whole` says
    of each arm whether all its runs reached the target and none diverged.
    """
    by_seed = [
        {seed: value for seed, cost in of_arm.items() if (value := getattr(cost, name)) is not None}
        for of_arm in costs
    ]
    found = significance.compare(comparable_only(by_seed, comparable), baseline, whole, min)
    return [
        (estimate_mean(values), None if one is None else make_difference(one))
        for values, one in zip(by_seed, found, strict=True)
    ]
