"""The results of an experiment in words: its arms, compared in one metric."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fedcore.platform.status import Status
from fedcore.statistics.significance import Conclusion
from fedcore.statistics.summary import headline
from fedq.schemas import ArmResult, ArmResults, Difference, Estimate, MetricResult, TargetResult

ABSENT = "-"
NOTHING = MetricResult(best=None, final=None, best_difference=None, final_difference=None)
SMALLEST, LARGEST = 1e-3, 1e5
"""Between these a number is written out, else with an exponent."""

Format = Callable[[float, str], str]
"""A number in words, with `+` as its second argument to show its sign always."""


class ComparisonTable(NamedTuple):
    """A table in words."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """A line per arm."""
    title: str


def comparison(results: ArmResults, metric: str | None = None) -> ComparisonTable:
    """Best and final of a metric over the seeds, beside the baseline what may be concluded,
    traffic; absent, the most telling metric.
    """
    metric = metric or headline({name for arm in results.arms for name in arm.metrics})
    shares = metric.endswith("accuracy")
    number: Format = _percent if shares else _plain
    rows = [list(_row(arm, metric, number)) for arm in results.arms]
    beside = f"final - {results.arms[results.baseline].name} [{results.confidence:.0%} CI]"
    columns = ["arm", "best", "final", beside, "verdict", "MB sent"]
    if results.target is not None:
        columns += [
            f"reached {results.target.metric.replace('_', ' ')} {results.target.value:g}",
            "rounds to it",
            "MB to it",
        ]
        rows = [[*row, *_way(arm.to_target)] for row, arm in zip(rows, results.arms, strict=True)]
    remarks = [_remark(arm) for arm in results.arms]
    if any(remarks):
        columns.append("")
        rows = [[*row, remark] for row, remark in zip(rows, remarks, strict=True)]
    words, seeds = (
        metric.replace("_", " ") + (" in %" if shares else ""),
        max(len(arm.seeds) for arm in results.arms),
    )
    return ComparisonTable(
        columns, rows, f"{results.name}: {words}, mean ± std over {seeds} seed{'s' * (seeds != 1)}"
    )


def _row(arm: ArmResult, metric: str, number: Format) -> Iterator[str]:
    figures = arm.metrics.get(metric, NOTHING)
    yield arm.name
    yield _spread(figures.best, number)
    yield _spread(figures.final, number)
    yield _difference(figures.final_difference, number)
    yield _verdict(figures.final_difference)
    yield ABSENT if arm.megabytes_sent is None else f"{arm.megabytes_sent.mean:,.1f}"


def _way(found: TargetResult | None) -> Iterator[str]:
    if found is not None:
        yield f"{found.reached} of {found.runs}"
        yield _spread(found.rounds, _tenth)
        yield _spread(found.megabytes, _tenth)


def _spread(estimate: Estimate | None, number: Format) -> str:
    if estimate is None:
        return ABSENT
    return number(estimate.mean, "") + ("" if estimate.std is None else f" ± {number(estimate.std, '')}")


def _difference(estimate: Estimate | None, number: Format) -> str:
    if estimate is None:
        return ABSENT
    interval = (
        ""
        if estimate.low is None or estimate.high is None
        else f" [{number(estimate.low, '+')}, {number(estimate.high, '+')}]"
    )
    return number(estimate.mean, "+") + interval


def _verdict(difference: Difference | None) -> str:
    if difference is None:
        return ABSENT
    words = difference.verdict.replace("_", " ")
    if difference.p_adjusted is None or difference.verdict is Conclusion.INCOMPLETE:
        return words
    return f"{words} (p {difference.p_adjusted:.2g})"


def _remark(arm: ArmResult) -> str:
    unfinished = [f"{count} {status}" for status, count in arm.runs.items() if status is not Status.SUCCEEDED]
    diverged = [f"{arm.diverged} of {sum(arm.runs.values())} diverged"] if arm.diverged else []
    stopped = [f"{arm.stopped} of {sum(arm.runs.values())} stopped early"] if arm.stopped else []
    return ", ".join(unfinished + diverged + stopped)


def _percent(value: float, sign: str) -> str:
    return format(100 * value, f"{sign}.2f")


def _tenth(value: float, sign: str) -> str:
    return format(value, f"{sign},.1f")


def _plain(value: float, sign: str) -> str:
    return format(value, f"{sign}.4f" if value == 0 or SMALLEST <= abs(value) < LARGEST else f"{sign}.2e")
