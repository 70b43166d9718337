"""Pictures and verdicts of a paper's figure."""

import pytest

from fedcore import presets
from fedcore.platform.status import Status
from fedq.reproductions.picture import names_in_a_line, over_a_column
from fedq.reproductions.report import section
from fedq.reproductions.sheets import Record
from fedq.schemas import ClaimResult, ComparisonResult

PRESET = presets.load("fednova-table-1-two-epochs-small")
KEPT = Record(
    preset=PRESET.name,
    version=PRESET.version,
    digest=PRESET.digest,
    status=Status.SUCCEEDED,
    fedq="0.1.0",
    finished=None,
    data=[],
    engines=[],
    rounds=50,
    seeds=[0, 1, 2],
    unsuccessful={},
    diverged={},
    claims=[],
    published=[],
)


@pytest.mark.parametrize(
    ("names", "width_in", "expected"),
    [
        (["alpha = 0.25"] * 5, 4.0, 2),
        (["FedAvg", "FedLin"], 8.0, 6),
        (["by p_k, simple average, mu = 1"], 3.0, 1),
        ([], 4.0, 5),
    ],
)
def test_as_many_names_stand_in_a_line_of_the_legend_as_are_wide_enough(
    names: list[str], width_in: float, expected: int
) -> None:
    assert names_in_a_line(names, width_in) == expected


def test_a_long_title_stands_above_its_own_column() -> None:
    title = "Shakespeare, 143 roles (small form: Shakespeare (plain text))"
    assert over_a_column(title) == "Shakespeare, 143 roles (small form:\nShakespeare (plain text))"
    assert over_a_column("MNIST, 1,000 devices") == "MNIST, 1,000 devices"


def told(holding: int, *, in_the_mean: bool) -> str:
    """The line on a claim that holds in every seed on one of its comparisons, and in `holding` of
    three on the other.
    """
    sides = [
        ComparisonResult(
            says="one above another", left=2.0, right=1.0, holds=in_the_mean, seeds=3, seeds_holding=seeds
        )
        for seeds in (3, holding)
    ]
    claim = ClaimResult(
        says="it is better", source="Table I", holds=in_the_mean, comparisons=sides, known_to_fail=None
    )
    record = KEPT.model_copy(update={"claims": [claim]})
    return next(line for line in section(record, PRESET) if "it is better" in line)


@pytest.mark.parametrize(
    ("holding", "in_the_mean", "verdict"),
    [
        (3, True, "holds"),
        (2, True, "holds"),
        (1, True, "holds in the mean, but in 1 of 3 seeds only"),
        (0, True, "holds in the mean, but in 0 of 3 seeds only"),
        (1, False, "**does not hold**"),
    ],
)
def test_a_claim_that_holds_in_the_mean_but_not_in_most_seeds_says_so(
    holding: int, in_the_mean: bool, verdict: str
) -> None:
    assert told(holding, in_the_mean=in_the_mean).split(" | ")[1] == verdict
