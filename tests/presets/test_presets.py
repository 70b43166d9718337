"""The claims of the papers, run here: every verdict is the one on record."""

from collections import defaultdict
from collections.abc import Iterator

import pytest

from fedcore import ExperimentSpec, presets, run
from fedcore.presets import PresetSpec
from fedcore.presets.claims import PublishedClaim, Rows, Trajectory, best_so_far, judge
from fedcore.spec.search import Study

QUICK = (
    "alie-defences-small",
    "asynchronous-tiers",
    "client-selection-rounds",
    "compressed-uplinks",
    "ditto-fairness",
    "dp-fedavg-epsilon",
    "fedbn-feature-skew",
    "fedbuff-simulated-time",
    "fedavg-noniid-counterexample",
    "fedavg-noniid-theorem-small",
    "fedaware-figure-3",
    "fedlin-figure-1-different-steps",
    "fedlin-figure-1-same-steps",
    "fedlin-lower-bound",
    "fednova-figure-2-same-steps-small",
    "fednova-figure-4-small",
    "fednova-figure-5-random-small",
    "fedprox-figure-9-synthetic-small",
    "fedprox-figure-11-iid-small",
    "ifca-rotated",
    "local-corrections",
    "personal-models",
    "privacy-mechanisms",
    "robust-backdoor",
    "power-of-choice-small",
    "tpe-against-grid-seed-0",
)
GENERATED = {"least_squares", "quadratic", "synthetic"}
"""Kinds of data that every machine has."""
LONGEST_S = 7200


def in_full() -> Iterator[PresetSpec]:
    """The presets in full that can be run anywhere."""
    for preset in map(presets.load, presets.names()):
        if not preset.small and preset.spec["problem"]["dataset"]["kind"] in GENERATED and claims_of(preset):
            yield preset


def claims_of(preset: PresetSpec) -> list[PublishedClaim]:
    return presets.sheet(preset.sheet).claims_of(preset.panel)


@pytest.mark.nightly
@pytest.mark.parametrize("name", QUICK)
def test_claims_come_out_as_on_record(name: str) -> None:
    come_out_as_on_record(presets.load(name))


@pytest.mark.papers
@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("name", [preset.name for preset in in_full()])
def test_claims_come_out_in_full_as_on_record(name: str) -> None:
    come_out_as_on_record(presets.load(name))


def test_what_the_suite_runs_shows_each_paper_and_each_way_to_judge() -> None:
    quick, full = (
        kinds(claim for preset in group for claim in claims_of(preset))
        for group in (map(presets.load, QUICK), in_full())
    )
    assert quick >= full
    judged = (name for name in presets.names() if claims_of(presets.load(name)))
    assert {name.split("-")[0] for name in QUICK} == {name.split("-")[0] for name in judged}


def kinds(claims: Iterator[PublishedClaim]) -> set[tuple[str, str]]:
    return {(one.statistic, one.relation) for claim in claims for one in claim.comparisons}


def come_out_as_on_record(preset: PresetSpec) -> None:
    rows = played(ExperimentSpec.model_validate(preset.spec))
    for claim in claims_of(preset):
        verdict = judge(claim, rows)
        assert verdict.holds is (preset.name not in claim.fails_in), (claim.says, verdict.sides)


def played(spec: ExperimentSpec) -> Rows:
    """The curves of every arm and seed."""
    values: dict[tuple[int, int, str], list[tuple[int, float]]] = defaultdict(list)
    diverged = set()
    for report in run(spec):
        measured = {
            "train_loss": report.train_loss,
            "test_loss": report.test_loss,
            "test_accuracy": report.test_accuracy,
            **report.extra,
        }
        for metric, value in measured.items():
            if isinstance(value, int | float):
                values[report.arm, report.seed, metric].append((report.round, value))
        if report.diverged:
            diverged.add((report.arm, report.seed))
    rows: dict[int, dict[int, dict[str, Trajectory]]] = defaultdict(lambda: defaultdict(dict))
    for (arm, seed, metric), points in values.items():
        curve = Trajectory(
            [round for round, _ in points], [value for _, value in points], (arm, seed) in diverged
        )
        rows[arm][seed][metric] = curve
    if isinstance(spec.search, Study):
        return best_so_far(rows, [spec.search.metric], spec.search.seed)
    return {arm.name: rows[arm.index] for arm in spec.arms() if arm.index in rows}
