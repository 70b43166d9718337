"""The claims of the papers, run here: every verdict is the one on record."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from math import inf
from typing import Any

import pytest

from bench.records import read_records
from fedcore import ExperimentSpec, presets, run
from fedcore.presets import PresetSpec, override
from fedcore.presets.claims import PublishedClaim, Rows, Trajectory, judge, read
from fedcore.statistics.inequalities import ClaimOutcome
from tests.presets.test_records import FOLDER

RECORDS = read_records(FOLDER)
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
)
GENERATED = {"least_squares", "quadratic", "synthetic"}
"""Kinds of data that every machine has."""
LONGEST_S = 7200
TESTED_SINCE = date(2026, 11, 27)
"""Earlier records were judged by their counts of seeds, which decide less than the tests do."""


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


def test_claims_that_the_suite_runs_show_each_paper_and_each_way_to_judge() -> None:
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
    record = RECORDS[preset.name]
    by_counts = record.finished is not None and record.finished < TESTED_SINCE
    for claim, recorded in zip(claims_of(preset), record.claims, strict=True):
        verdict = judge(claim, rows)
        if not (by_counts and recorded.verdict is ClaimOutcome.NOT_DECIDED):
            assert verdict.outcome is recorded.verdict, (claim.says, verdict.sides)


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
    return {arm.name: rows[arm.index] for arm in spec.arms() if arm.index in rows}


# Why a claim does not come out in a preset, where that takes no time to show: the same experiment
# with the reason taken away.


def rounds_to(preset: str, target: float, changes: dict[str, Any]) -> float:
    """Rounds to that suboptimality in one arm of `preset`, with `changes`."""
    document = override(presets.load(preset).spec, {"sweep": None, "seeds": [0], **changes})
    found = [
        (report.round, report.extra["suboptimality"])
        for report in run(ExperimentSpec.model_validate(document))
    ]
    curve = Trajectory(
        [round for round, _ in found],
        [value for _, value in found if isinstance(value, float)],
        diverged=False,
    )
    return read("rounds_to", "suboptimality", curve, target)


@pytest.mark.parametrize(
    ("schedules", "rounds", "expected"),
    [
        ([{"mu": 0.1, "gamma": gamma} for gamma in (90, 100, 200)], 30, [13, 14, 14]),
        ([{"mu": 1, "gamma": 20, "counts": "rounds"}] * 3, 80, [13, 70, 78]),
    ],
    ids=["by steps", "by rounds"],
)
def test_the_best_number_of_local_steps_lies_between_if_the_step_size_falls_by_rounds(
    schedules: list[dict[str, Any]], rounds: int, expected: list[float]
) -> None:
    changes = [
        {"rounds": rounds, "local": {"steps": steps, "lr_schedule": {"kind": "inverse_time", **schedule}}}
        for steps, schedule in zip((20, 100, 200), schedules, strict=True)
    ]
    assert [rounds_to("fedavg-noniid-theorem", 0.1, change) for change in changes] == expected


def test_fedlin_is_much_faster_than_scaffold_where_each_takes_its_best_step() -> None:
    def rounds(kind: str, lr: float) -> float:
        return rounds_to(
            "fedlin-regression", 1e-10, {"rounds": 30, "algorithm": {"kind": kind}, "local": {"lr": lr}}
        )

    assert rounds("fedlin", 3.2) < 0.5 * min(rounds("scaffold", lr) for lr in (0.05, 0.06, 0.07)) < inf
