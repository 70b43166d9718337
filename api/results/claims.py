"""Published claims and numbers, compared with the results of the preset that reproduces them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite

from api.results.summaries import ResultRows
from fedcore import presets
from fedcore.errors import PresetNotFoundError, ResourceNotFoundError
from fedcore.platform.store import experiments
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.presets import PresetSpec
from fedcore.presets.claims import (
    ClaimComparison,
    ClaimVerdict,
    Sides,
    Trajectory,
    judge,
    read,
)
from fedcore.presets.claims import Rows as Trajectories
from fedcore.presets.sheet import Published
from fedcore.statistics import summary
from fedq.schemas import ClaimResult, Claims, ComparisonResult, Estimate, PublishedRow, PublishedTable


def preset_of(experiment: ExperimentRecord) -> PresetSpec:
    """Return the preset that `experiment` was submitted as, here or where it was imported from.

    Raises ResourceNotFoundError if there is none or it has changed since.
    """
    origin = experiments.origin(experiment.provenance)
    name, version = origin.get("preset"), origin.get("preset_version")
    if not isinstance(name, str):
        raise ResourceNotFoundError(
            f"{experiment.id} was not submitted as a preset, so it has no published claims"
        )
    try:
        preset = presets.load(name)
    except PresetNotFoundError as error:
        raise ResourceNotFoundError(str(error)) from error
    if preset.version != version:
        raise ResourceNotFoundError(
            f"{experiment.id} uses version {version} of {name}, but the claims apply to version"
            f" {preset.version}"
        )
    return preset


def metrics_of(preset: PresetSpec) -> list[str]:
    """Return the metrics of the claims and published numbers."""
    sheet = presets.sheet(preset.sheet)
    claimed = {
        comparison.metric for claim in sheet.claims_of(preset.panel) for comparison in claim.comparisons
    }
    return sorted(claimed | {table.metric for table in sheet.published_of(preset.panel)})


def claims_of(rows: ResultRows, preset: PresetSpec) -> Claims:
    """Compare the claims of `preset` with the rows of an experiment that ran it.

    `rows` contain the metrics of `metrics_of(preset)`.
    """
    sheet, found = presets.sheet(preset.sheet), _trajectories(rows, metrics_of(preset))
    return Claims(
        experiment_id=rows.experiment.id,
        preset=preset.name,
        preset_version=preset.version,
        departures=list(preset.departures),
        changed=bool(experiments.origin(rows.experiment.provenance).get("overrides")),
        claims=[_claim(judge(claim, found), preset.name) for claim in sheet.claims_of(preset.panel)],
        published=[_published(table, found) for table in sheet.published_of(preset.panel)],
    )


def _trajectories(rows: ResultRows, metrics: Sequence[str]) -> Trajectories:
    found: dict[int, dict[int, dict[str, Trajectory]]] = defaultdict(dict)
    for run in rows.runs:
        if run.id in rows.series:
            curves, diverged = rows.series[run.id], run.diverged_round is not None
            found[run.arm][run.seed] = {
                metric: _trajectory(curves.rounds, curves.listed(metric), diverged=diverged)
                for metric in metrics
            }
    names = {run.arm: run.arm_name for run in rows.runs}
    return {names[arm]: by_seed for arm, by_seed in found.items()}


def _trajectory(rounds: Sequence[int], values: Sequence[float | None], *, diverged: bool) -> Trajectory:
    known = [(round, value) for round, value in zip(rounds, values, strict=True) if value is not None]
    return Trajectory([round for round, _ in known], [value for _, value in known], diverged)


def _claim(verdict: ClaimVerdict, preset: str) -> ClaimResult:
    claim = verdict.claim
    return ClaimResult(
        says=claim.says,
        source=claim.source,
        verdict=verdict.outcome,
        comparisons=[_comparison(sides) for sides in verdict.sides],
        known_to_fail=claim.because if preset in claim.fails_in else None,
    )


def _comparison(sides: Sides) -> ComparisonResult:
    left, right = (value if isfinite(value) else None for value in (sides.left, sides.right))
    return ComparisonResult(
        says=words(sides.comparison),
        left=left,
        right=right,
        verdict=sides.outcome,
        seeds=sides.seeds,
        seeds_holding=sides.seeds_holding,
    )


def words(comparison: ClaimComparison) -> str:
    """Return a comparison as a sentence."""
    what = f"{comparison.statistic.replace('_', ' ')} {comparison.metric.replace('_', ' ')}"
    if comparison.target is not None:
        what = f"rounds to {comparison.metric.replace('_', ' ')} {comparison.target:g}"
    factor = "" if comparison.factor == 1 else f"{comparison.factor:g} times "
    within = "" if comparison.tolerance is None else f", to {comparison.tolerance:g} of it"
    other = f"that of [{comparison.than}]" if isinstance(comparison.than, str) else f"{comparison.than:g}"
    return f"{what} of [{comparison.arm}] {comparison.relation} {factor}{other}{within}"


def _published(table: Published, rows: Trajectories) -> PublishedTable:
    found = [
        PublishedRow(
            arm=arm,
            published_mean=number.mean,
            published_std=number.std,
            measured=_measured(table, rows.get(arm, {})),
        )
        for arm, number in table.numbers.items()
    ]
    return PublishedTable(source=table.source, metric=table.metric, statistic=table.statistic, rows=found)


def _measured(table: Published, arm: Mapping[int, Mapping[str, Trajectory]]) -> Estimate | None:
    values = [
        read(table.statistic, table.metric, metrics[table.metric], table.target) for metrics in arm.values()
    ]
    estimate = summary.estimate(values) if all(map(isfinite, values)) else None
    return None if estimate is None else Estimate(**estimate._asdict())
