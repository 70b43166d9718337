"""Which runs are of little use, and how many of them there are."""

import pytest

from fedcore.statistics.poor_runs import MeasureEnds, WarningKind, find_warning, summarise_warnings

CHANCE, WORSE = WarningKind.AT_CHANCE, WarningKind.WORSE


@pytest.mark.parametrize(
    ("ends", "chance", "kind"),
    [
        ({"test_accuracy": (0.3, 0.0972)}, 0.1028, CHANCE),
        ({"test_accuracy": (0.1, 0.1)}, 0.1, CHANCE),
        ({"test_accuracy": (0.1, 0.1001)}, 0.1, None),
        ({"test_accuracy": (0.5, 0.0)}, None, None),
        ({"test_accuracy": (0.1, 0.1), "train_loss": (2.3, 292.0)}, 0.1, CHANCE),
        ({"test_accuracy": (0.1, 0.2), "train_loss": (2.3, 292.0)}, 0.1, WORSE),
        ({"train_loss": (2.0, 2.1)}, None, None),
        ({"train_loss": (2.0, 2.1001)}, None, WORSE),
        ({"train_loss": (-2.0, -1.9)}, None, None),
        ({"train_loss": (-2.0, -1.8)}, None, WORSE),
        ({"train_loss": (0.0, 1e-300)}, None, WORSE),
        ({"objective": (1.0, 2.0)}, None, WORSE),
        ({"train_loss": (2.0, 1.0), "objective": (1.0, 2.0)}, None, None),
        # A test loss may grow while the accuracy does.
        ({"test_loss": (1.0, 2.0), "train_loss": (1.0, 0.1)}, None, None),
        ({}, 0.1, None),
    ],
)
def test_a_run_is_warned_of_by_its_own_evaluations(
    ends: dict[str, tuple[float, float]], chance: float | None, kind: WarningKind | None
) -> None:
    found = find_warning({name: MeasureEnds(*values) for name, values in ends.items()}, chance)
    assert (found and found.kind) == kind


def test_a_warning_says_by_which_numbers() -> None:
    found = find_warning({"test_accuracy": MeasureEnds(0.3, 0.0972)}, 0.1028)
    assert found is not None
    assert found.detail == (
        "ended at chance level: test accuracy 9.72 %, where the most frequent label alone gives 10.28 %"
    )
    found = find_warning({"train_loss": MeasureEnds(2.3, 292.0)}, None)
    assert found is not None
    assert found.detail == (
        "ended worse than it began: train loss 2.3 at the first evaluation, 292 at the last"
    )


@pytest.mark.parametrize(
    ("counts", "runs", "told"),
    [
        ({}, 3, None),
        ({WarningKind.DIVERGED: 0}, 3, None),
        ({WarningKind.DIVERGED: 1}, 1, "1 of 1 run diverged"),
        ({WarningKind.DIVERGED: 2}, 2, "2 of 2 runs diverged"),
        ({WORSE: 1}, 2, "1 of 2 runs ended worse than it began"),
        (
            {WORSE: 2, CHANCE: 1},
            1200,
            "1 of 1,200 runs ended at chance level; 2 of 1,200 runs ended worse than they began",
        ),
    ],
)
def test_warnings_are_counted_in_one_line(
    counts: dict[WarningKind, int], runs: int, told: str | None
) -> None:
    assert summarise_warnings(counts, runs) == told
