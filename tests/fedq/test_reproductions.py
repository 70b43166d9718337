"""Pictures and verdicts of a paper's figure."""

import pytest

from fedcore import presets
from fedcore.platform.status import Status
from fedcore.statistics.inequalities import ClaimOutcome
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


@pytest.mark.parametrize(
    ("outcome", "verdict", "side"),
    [
        (ClaimOutcome.HOLDS, "holds", "one above another"),
        (ClaimOutcome.DOES_NOT_HOLD, "**does not hold**", "not one above another"),
        (ClaimOutcome.NOT_DECIDED, "not decided", "not decided: one above another"),
    ],
)
def test_a_report_says_what_holds_what_does_not_and_what_is_not_decided(
    outcome: ClaimOutcome, verdict: str, side: str
) -> None:
    comparison = ComparisonResult(
        says="one above another", left=2.0, right=1.0, verdict=outcome, seeds=3, seeds_holding=2
    )
    claim = ClaimResult(
        says="it is better",
        source="Table I",
        verdict=outcome,
        comparisons=[comparison],
        known_to_fail="too few rounds" if outcome is ClaimOutcome.DOES_NOT_HOLD else None,
    )
    record = KEPT.model_copy(update={"claims": [claim]})
    line = next(line for line in section(record, PRESET) if "it is better" in line)
    because = "<br>Known: too few rounds" if claim.known_to_fail else ""
    numbers = f"{side}: 2 against 1 (2 of 3 seeds){because}"
    assert line == f"| it is better (Table I) | {verdict} | {numbers} |"
