"""`/v1/experiments/{id}/claims`: what a publication printed and claimed, beside what came out of the preset that follows it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from fastapi import APIRouter

from api.access.auth import Reader
from api.dependencies import ExperimentId, Store
from api.problems import responses
from api.schemas import ClaimResult, Claims, ComparisonResult, Estimate, PublishedRow, PublishedTable
from fedcore import presets, summary
from fedcore.errors import NotFoundError, PresetNotFoundError
from fedcore.presets import Preset
from fedcore.presets.claims import Claim, Comparison, Rows, Sides, Verdict, judge
from fedcore.presets.sheet import Published
from fedcore.presets.statistics import Trajectory, read
from fedcore.store import experiments, runs, series
from fedcore.store.series import Series
from fedcore.store.tables import ExperimentRecord, RunRecord

router = APIRouter(prefix="/v1/experiments", tags=["results"])


@router.get("/{experiment_id}/claims", responses=responses(404, 422), summary="Hold results against the publication")
def read_claims(principal: Reader, experiment_id: ExperimentId, database: Store) -> Claims:
    """For an experiment that was submitted as a preset: its publication's claims with a verdict each, and its numbers beside what came out.

    They may be read at any time; they are final once the experiment's status is.
    """
    with database.reading() as session:
        experiment = experiments.find(session, experiment_id, principal.sees)
        preset = _preset(experiment)
        sheet = presets.sheet(preset.sheet)
        claims, published = sheet.claims_of(preset.panel), sheet.published_of(preset.panel)
        metrics = sorted(_metrics(claims, published))
        records = runs.of_experiment(session, experiment_id)
        rows = _rows(records, series.of_runs(session, [record.id for record in records], *metrics), metrics)
    return Claims(
        experiment_id=experiment_id,
        preset=preset.name,
        preset_version=preset.version,
        departures=list(preset.departures),
        changed=bool(experiment.provenance.get("overrides")),
        claims=[_claim(judge(claim, rows), preset.name) for claim in claims],
        published=[_published(table, rows) for table in published],
    )


def _preset(experiment: ExperimentRecord) -> Preset:
    """The preset that `experiment` was submitted as; raises NotFoundError where it was none, or one that has changed since."""
    name, version = experiment.provenance.get("preset"), experiment.provenance.get("preset_version")
    if name is None:
        raise NotFoundError(f"{experiment.id} was not submitted as a preset, so no publication claims anything of it")
    try:
        preset = presets.load(name)
    except PresetNotFoundError as error:
        raise NotFoundError(str(error)) from error
    if preset.version != version:
        raise NotFoundError(f"{experiment.id} follows version {version} of {name}; the claims here are about version {preset.version}")
    return preset


def _metrics(claims: Iterable[Claim], published: Iterable[Published]) -> set[str]:
    return {comparison.metric for claim in claims for comparison in claim.comparisons} | {table.metric for table in published}


def _rows(records: Sequence[RunRecord], found: Mapping[str, Series], metrics: Sequence[str]) -> Rows:
    rows: dict[str, dict[int, dict[str, Trajectory]]] = defaultdict(dict)
    for record in records:
        if record.id in found:
            curves, diverged = found[record.id], record.diverged_round is not None
            rows[record.arm_name][record.seed] = {
                metric: _trajectory(curves.rounds, curves.listed(metric), diverged=diverged) for metric in metrics
            }
    return rows


def _trajectory(rounds: Sequence[int], values: Sequence[float | None], *, diverged: bool) -> Trajectory:
    known = [(round, value) for round, value in zip(rounds, values, strict=True) if value is not None]
    return Trajectory([round for round, _ in known], [value for _, value in known], diverged)


def _claim(verdict: Verdict, preset: str) -> ClaimResult:
    claim = verdict.claim
    return ClaimResult(
        says=claim.says,
        source=claim.source,
        holds=verdict.holds,
        comparisons=[_comparison(sides) for sides in verdict.sides],
        known_to_fail=claim.because if preset in claim.fails_in else None,
    )


def _comparison(sides: Sides) -> ComparisonResult:
    left, right = (value if isfinite(value) else None for value in (sides.left, sides.right))
    return ComparisonResult(
        says=words(sides.comparison), left=left, right=right, holds=sides.holds, seeds=sides.seeds, seeds_holding=sides.seeds_holding
    )


def words(comparison: Comparison) -> str:
    """A comparison as a sentence."""
    what = f"{comparison.statistic.replace('_', ' ')} {comparison.metric.replace('_', ' ')}"
    if comparison.target is not None:
        what = f"rounds to {comparison.metric.replace('_', ' ')} {comparison.target:g}"
    factor = "" if comparison.factor == 1 else f"{comparison.factor:g} times "
    within = "" if comparison.tolerance is None else f", to {comparison.tolerance:g} of it"
    other = f"that of [{comparison.than}]" if isinstance(comparison.than, str) else f"{comparison.than:g}"
    return f"{what} of [{comparison.arm}] {comparison.relation} {factor}{other}{within}"


def _published(table: Published, rows: Rows) -> PublishedTable:
    found = [
        PublishedRow(arm=arm, published_mean=number.mean, published_std=number.std, measured=_measured(table, rows.get(arm, {})))
        for arm, number in table.numbers.items()
    ]
    return PublishedTable(source=table.source, metric=table.metric, statistic=table.statistic, rows=found)


def _measured(table: Published, arm: Mapping[int, Mapping[str, Trajectory]]) -> Estimate | None:
    values = [read(table.statistic, table.metric, metrics[table.metric]) for metrics in arm.values()]
    estimate = summary.estimate(values) if all(map(isfinite, values)) else None
    return None if estimate is None else Estimate(**estimate._asdict())
