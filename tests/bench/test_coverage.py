"""The simulation of the set of the best arms: its cells, its resumption, and its page."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bench import coverage
from bench.coverage import BY_MEAN, DEVIATIONS, ERRORS, FAR, MISSING, NOISY, Setting, measure

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


@pytest.mark.parametrize("name", DEVIATIONS)
@pytest.mark.parametrize("arms", [2, 9])
def test_deviations_are_positive_and_within_their_bound(name: str, arms: int) -> None:
    means = np.linspace(0, -FAR, arms)
    found = DEVIATIONS[name](means, np.random.default_rng(0))
    assert found.shape == means.shape
    assert (found > 0).all()
    if not name.startswith("log"):
        assert set(found) <= {1.0, NOISY} or name == BY_MEAN
        assert found.max() == (1 if name == "equal" else NOISY)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_variance_one(name: str) -> None:
    assert ERRORS[name](np.random.default_rng(1), (100, 1_000)).var() == pytest.approx(1, abs=0.05)


def test_a_cell_has_shares() -> None:
    found = measure(Setting(4, 4, "equal", "normal", 0.0), 20)
    assert found.coverage > 0.7
    assert found.decided == 1
    assert 0.25 <= found.size <= 0.5


def test_two_arms_of_three_seeds_are_too_few() -> None:
    found = measure(Setting(2, 3, "equal", "normal", 0.1), 5)
    assert (found.decided, found.size) == (0.0, 1.0)


def test_a_cell_that_is_kept_is_not_computed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--arms", "2", "--seeds", "3", "--draws", "1", "--home", str(tmp_path)]
    coverage.main(arguments)
    first = capsys.readouterr().out
    monkeypatch.delattr(coverage, "measure")
    coverage.main(arguments)
    again = capsys.readouterr().out
    assert first.endswith(again)
    assert again.count("too few") == len(DEVIATIONS) * len(ERRORS) * len(MISSING)


def test_the_page_has_every_row_and_marks_low_coverage() -> None:
    text = PAGE.read_text(encoding="utf-8")
    measured = re.findall(r"<!-- measured: coverage-\d+ -->\n(.*?)\n<!-- end", text, re.DOTALL)
    assert len(measured) >= 3
    for section in measured:
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[4:]]
        expected = product(DEVIATIONS, ERRORS, (f"{100 * missing:.0f} %" for missing in MISSING))
        assert [tuple(row[:3]) for row in rows] == [*expected]
        for cell in (cell for row in rows for cell in row[3:] if cell not in {"too few", "not run"}):
            assert cell.startswith("**") == (float(cell.strip("*").partition(" ")[0]) < 93)
