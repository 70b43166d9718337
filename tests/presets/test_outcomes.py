"""What the papers claim, run here where it takes seconds: every verdict is the one on record."""

from collections import defaultdict

import pytest

from fedcore import ExperimentSpec, presets, run
from fedcore.presets.claims import Rows, judge
from fedcore.presets.statistics import Trajectory

PRESETS = (
    "fedaware-figure-3",
    "fedavg-noniid-sampling-small",
    "fedlin-regression",
    "fedlin-sparsification",
    "fednova-figure-2-different-steps-small",
    "fednova-figure-2-same-steps-small",
    "fednova-figure-5-sampled-small",
    "fedprox-figure-9-synthetic-small",
    "fedavg-noniid-counterexample",
    "fedavg-noniid-local-work-small",
    "fedlin-figure-1-different-steps",
    "fedlin-figure-1-same-steps",
    "fedlin-lower-bound",
    "fednova-figure-4-small",
    "fednova-figure-5-random-small",
    "fedprox-figure-1-synthetic-small",
    "fedprox-figure-11-iid-small",
)
"""Those of a few seconds each; docs/reproductions.md has the others."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_claims_come_out_as_on_record(name: str) -> None:
    preset = presets.load(name)
    rows = played(ExperimentSpec.model_validate(preset.spec))
    for claim in presets.sheet(preset.sheet).claims_of(preset.panel):
        verdict = judge(claim, rows)
        assert verdict.holds is (preset.name not in claim.fails_in), (claim.says, verdict.sides)


def played(spec: ExperimentSpec) -> Rows:
    """The curves of every arm and seed."""
    names = {arm.index: arm.name for arm in spec.arms()}
    values: dict[tuple[int, int, str], list[tuple[int, float]]] = defaultdict(list)
    diverged = set()
    for report in run(spec):
        measured = {"train_loss": report.train_loss, "test_accuracy": report.test_accuracy, **report.extra}
        for metric, value in measured.items():
            if isinstance(value, int | float):
                values[report.arm, report.seed, metric].append((report.round, value))
        if report.diverged:
            diverged.add((report.arm, report.seed))
    rows: dict[str, dict[int, dict[str, Trajectory]]] = defaultdict(lambda: defaultdict(dict))
    for (arm, seed, metric), points in values.items():
        curve = Trajectory([round for round, _ in points], [value for _, value in points], (arm, seed) in diverged)
        rows[names[arm]][seed][metric] = curve
    return rows
