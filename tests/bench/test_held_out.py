"""Recorded verdicts beside those on other seeds."""

from bench.held_out import compare
from bench.records import read_records
from fedcore.statistics.inequalities import ClaimOutcome
from fedq.schemas import ClaimResult
from tests.presets.test_records import FOLDER

HOLDS, DOES_NOT_HOLD, NOT_DECIDED = ClaimOutcome


def claim(verdict: ClaimOutcome) -> ClaimResult:
    return ClaimResult(says="it is so", source="", verdict=verdict, comparisons=[], known_to_fail=None)


def test_verdicts_are_counted_by_what_became_of_them_and_those_that_turned_are_named() -> None:
    kept = next(iter(read_records(FOLDER).values()))
    became = [
        (HOLDS, HOLDS),
        (HOLDS, NOT_DECIDED),
        (HOLDS, DOES_NOT_HOLD),
        (DOES_NOT_HOLD, DOES_NOT_HOLD),
        (NOT_DECIDED, HOLDS),
    ]
    record = kept.model_copy(update={"claims": [claim(first) for first, _ in became], "seeds": [0, 1, 2]})
    told = list(compare({"one": record}, {"one": [claim(then) for _, then in became]}))
    assert told[0].startswith("Of 4 decided verdicts, 2 came out the same on held-out seeds, 1 were not")
    assert "| `one` | 3 | 4 | 2 | 1 | 1 |" in "\n".join(told)
    assert told[-1] == "- `one`: it is so: holds, then does_not_hold"
