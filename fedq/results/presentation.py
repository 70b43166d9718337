"""Results and verdicts as cells and sentences, shared by command line, notebooks, reports and
web pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from fedcore.platform.status import Status
from fedcore.simulation.report import StopReason
from fedcore.statistics.inequalities import ClaimOutcome
from fedcore.statistics.summary import choose_headline
from fedcore.visible_text import visible

if TYPE_CHECKING:
    from fedq.schemas import (
        ArmBesideOthers,
        ArmResult,
        ArmResults,
        ClaimResult,
        ComparisonResult,
        Estimate,
        PublishedRow,
        PublishedTable,
        Run,
        TargetResult,
    )

ABSENT = "-"
UNKNOWN = "\N{EN DASH}"
SMALLEST, LARGEST = 1e-3, 1e5
"""Between these a number is written out, else with an exponent."""

Format = Callable[[float, str], str]
"""A number in words, with `+` as its second argument to show its sign always."""


UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
"""Units with their seconds, longest first."""


def duration(seconds: float | None) -> str:
    """Format a duration as `2 h 5 min`: the two largest units, or seconds; a dash if unknown."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for position, (size, name) in enumerate(UNITS):
        if whole >= size:
            smaller, smaller_name = UNITS[position + 1] if position + 1 < len(UNITS) else (1, "s")
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def counted(number: int, noun: str) -> str:
    """Format a number of things: `1 run`, `2,000 runs`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def remaining(eta_s: float | None) -> str:
    """The estimated time left, after what is done; empty if it is unknown."""
    return "" if eta_s is None else f", about {duration(eta_s)} remaining"


def is_share(metric: str) -> bool:
    """True for accuracies and figures of them, which tables and figures show in percent."""
    return (
        metric.endswith(("accuracy", "decile"))
        or metric.startswith("personal_")
        or metric == "client_accuracy_std"
    )


def lossy_copies(data_sources: Iterable[str]) -> list[str]:
    """The data sources of runs that are copies with losses; their names end so."""
    return [source for source in data_sources if source.endswith("copy)")]


def is_private(results: ArmResults) -> bool:
    """True if an arm has differential privacy: what is measured of its runs is not covered by it."""
    settings = [results.parameters, *(arm.parameters for arm in results.arms)]
    return any("privacy.kind" in known for known in settings)


def metric_value(metric: str, value: float) -> str:
    """Format a value of a metric, in percent if it is a share; `metric_title` names the unit."""
    return _percent(value, "") if is_share(metric) else f"{value:.6g}"


def metric_title(metric: str) -> str:
    """Name of a metric with its unit."""
    return metric.replace("_", " ") + (" in %" if is_share(metric) else "")


def measurement(metric: str, value: float) -> str:
    """A metric with its value: `test accuracy 97.65 %`, `train loss 0.1234`."""
    number = f"{_percent(value, '')} %" if is_share(metric) else f"{value:.4g}"
    return f"{metric.replace('_', ' ')} {number}"


STOPPED = {
    StopReason.RUNG: "the search did not promote its arm",
    StopReason.PATIENCE: "no improvement",
    StopReason.TARGET: "target reached",
}


def ending(run: Run) -> str:
    """How a run ended other than by completing its rounds as expected; empty if it did not."""
    stopped = f"stopped early: {STOPPED[run.stop_reason]}" if run.stop_reason else None
    return "; ".join(filter(None, (stopped, run.warning)))


def figure_file(experiment_id: str, metric: str) -> str:
    """Name of the file with the curves of a metric that a report in Markdown shows."""
    return f"{experiment_id}-{metric.replace('/', '-')}.svg"


RunFigure = Literal["final", "best", "area"]
"""Figures of a run's curve of a metric: its last value, its best one, and its mean over the rounds."""
TargetCost = Literal["rounds", "megabytes", "simulated_seconds"]
"""Costs of a run until a metric reaches a target, by which arms are compared."""
ComparedFigure = Literal[RunFigure, TargetCost]
"""Figures by which arms are compared."""
COMPARED: Mapping[ComparedFigure, str] = {
    "final": "final",
    "best": "best",
    "area": "mean over rounds",
    "rounds": "rounds to it",
    "megabytes": "MB to it",
    "simulated_seconds": "simulated s to it",
}
"""The figures that arms are compared by, as heads of a column."""


INTERVALS = (
    "An interval with 0 as its end is decided: [0, ...] is better and [..., 0] is worse than another arm."
    " Differences are found on a scale of logits or logarithms, where it applies."
)
"""Explanation of the intervals of a comparison."""


class ComparisonTable(NamedTuple):
    """A table in words."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """A line per arm."""
    title: str


def comparison_cells(results: ArmResults, metric: str | None = None) -> ComparisonTable:
    """Best and final of a metric over the seeds, what may be concluded beside the best of the other arms or
    beside the baseline, and traffic; absent, the most telling metric.
    """
    metric = metric or choose_headline({name for arm in results.arms for name in arm.metrics})
    number: Format = _percent if is_share(metric) else _plain
    rows = [[*_figures(arm, metric, number), _megabytes(arm)] for arm in results.arms]
    columns = ["arm", "best", "final", "MB sent"]
    found = results.best_arms
    if found is not None and found.metric == metric:
        beside = "best other" if found.baseline is None else results.arms[found.baseline].name
        columns[3:3] = [f"{COMPARED[found.by]} - {beside} [{results.confidence:.0%} CI]", "verdict"]
        unit = number if found.by in get_args(RunFigure) else _short
        for row, one in zip(rows, found.beside, strict=True):
            row[3:3] = [_difference(one, unit), one.words]
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
    seeds = counted(max(len(arm.seeds) for arm in results.arms), "seed")
    title = f"{results.name}: {metric_title(metric)}, mean ± std over {seeds}"
    # A comparison does not say where its data come from.
    if copies := lossy_copies(getattr(results, "data_sources", ())):
        title += f"; data: {', '.join(copies)}"
    if is_private(results):
        title += "; measured without noise, not covered by epsilon"
    if results.selection:
        title += f". {results.selection}"
    return ComparisonTable(columns, rows, title)


def comparison_text(results: ArmResults) -> str:
    """The table of `comparison_cells` as lines of text for a terminal."""
    table = comparison_cells(results)
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return visible("\n".join([table.title, *padded, *conclusions(results)]))


def conclusions(results: ArmResults) -> Sequence[str]:
    """Conclusions about the arms, and how to read the intervals if there are any."""
    found = results.best_arms
    if found is None:
        return ()
    return (found.says, *([INTERVALS] if any(one.low is not None for one in found.beside) else []))


def _figures(arm: ArmResult, metric: str, number: Format) -> Iterator[str]:
    found = arm.metrics.get(metric)
    yield arm.name
    yield _spread(found.best if found else None, number)
    yield _spread(found.final if found else None, number)


def _difference(one: ArmBesideOthers, number: Format) -> str:
    if one.difference is None:
        return ABSENT
    ends = ["0" if end == 0 else number(end, "+") for end in (one.low, one.high) if end is not None]
    return number(one.difference, "+") + (f" [{', '.join(ends)}]" if ends else "")


def _megabytes(arm: ArmResult) -> str:
    return ABSENT if arm.megabytes_sent is None else _short(arm.megabytes_sent.mean, "")


def _way(found: TargetResult | None) -> Iterator[str]:
    if found is not None:
        yield f"{found.reached} of {found.runs}"
        for cost in (found.rounds, found.megabytes):
            bound = "at least " if cost is not None and found.reached < cost.n else ""
            yield bound + _spread(cost, _short)


def _spread(estimate: Estimate | None, number: Format) -> str:
    if estimate is None:
        return ABSENT
    return number(estimate.mean, "") + ("" if estimate.std is None else f" ± {number(estimate.std, '')}")


def _remark(arm: ArmResult) -> str:
    unfinished = [f"{count} {status}" for status, count in arm.runs.items() if status is not Status.SUCCEEDED]
    place = f"first: {arm.divergence}" if arm.divergence else None
    stopped = (
        f"{arm.stopped} of {counted(sum(arm.runs.values()), 'run')} stopped early" if arm.stopped else None
    )
    return "; ".join(filter(None, [", ".join(unfinished), arm.warning, place, stopped]))


def _percent(value: float, sign: str) -> str:
    # In decimals: a hundred times the largest number is no number.
    return (
        format(100 * value, f"{sign}.2f")
        if abs(value) < LARGEST
        else format(100 * Decimal(value), f"{sign}.2e")
    )


def _short(value: float, sign: str) -> str:
    return format(value, f"{sign},.0f" if abs(value) >= 100 else f"{sign}.3g")


def _plain(value: float, sign: str) -> str:
    return format(value, f"{sign}.4f" if value == 0 or SMALLEST <= abs(value) < LARGEST else f"{sign}.2e")


def verdict(claim: ClaimResult) -> str:
    """Verdict on a claim in words."""
    return "no results" if claim.verdict is None else claim.verdict.replace("_", " ")


def side(found: ComparisonResult) -> str:
    """One comparison behind a claim, with its numbers."""
    left, right = (
        "diverged or never" if value is None else _number(value) for value in (found.left, found.right)
    )
    return (
        f"{_OUTCOMES[found.verdict]}{found.says}: {left} against {right} ({found.seeds_holding} of"
        f" {found.seeds} seeds)"
    )


_OUTCOMES: Mapping[ClaimOutcome, str] = {
    ClaimOutcome.HOLDS: "",
    ClaimOutcome.DOES_NOT_HOLD: "not ",
    ClaimOutcome.NOT_DECIDED: "not decided: ",
}


def known(claim: ClaimResult) -> str | None:
    """Known reason why a claim does not hold; None if there is none."""
    held = claim.verdict is ClaimOutcome.HOLDS
    return f"Known: {claim.known_to_fail}" if claim.known_to_fail and not held else None


def grounds(claim: ClaimResult) -> list[str]:
    """Evidence for a verdict."""
    return [*map(side, claim.comparisons), *filter(None, [known(claim)])]


def subject(table: PublishedTable) -> str:
    """Description of a published table."""
    return (
        f"{table.statistic.replace('_', ' ').capitalize()} {table.metric.replace('_', ' ')}, published in"
        f" {table.source}"
    )


def published(row: PublishedRow) -> str:
    """Published number."""
    return _with_std(row.published_mean, row.published_std)


def measured(row: PublishedRow) -> str:
    """Measured number."""
    return "none" if row.measured is None else _with_std(row.measured.mean, row.measured.std)


FILTERS: Mapping[str, Callable[..., str | list[str] | None]] = {
    function.__name__: function
    for function in (
        counted,
        duration,
        ending,
        grounds,
        known,
        measured,
        measurement,
        metric_title,
        metric_value,
        published,
        side,
        subject,
        verdict,
    )
}
"""Filters for templates."""


def _with_std(mean: float, std: float | None) -> str:
    return _number(mean) + ("" if std is None else f" ± {_number(std)}")


def _number(value: float) -> str:
    return f"{value:.4g}"
