"""Why a claim does not come out in a preset, where that takes no time to show: the same experiment
with the reason taken away.
"""

from math import inf
from typing import Any

import pytest

from fedcore import ExperimentSpec, presets, run
from fedcore.presets import override
from fedcore.presets.claims import Trajectory, read


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
