from pathlib import Path

import pytest

from bench import report
from bench.contender import Played
from bench.limits import Limits
from bench.operations import Work
from bench.race import Entry, Race
from bench.workloads import WORKLOADS


def test_a_row_has_medians_and_ratios_round_by_round() -> None:
    ours = Entry(
        "fedq", 1.0, 0.5, 100_000_000, 0.0, "engine x", [Played(0.1, 10), Played(0.2, 10), Played(0.3, 20)]
    )
    loop = Entry(
        "loop", 2.0, 5.0, 50_000_000, 1e-6, "1 thread", [Played(1.0, 10), Played(3.0, 10), Played(6.0, 20)]
    )
    race = Race("W9", "A title", [ours, loop], [Work(1e9, 0.0), Work(2e9, 0.0), Work(2e9, 0.0)], 1)
    head, _, _, first, second = report.section(race, Limits(100.0, 10.0)).replace("\n\n", "\n").split("\n")
    assert head.startswith("**W9.** A title. Median of 3 rounds: 10 local steps, 2 GFLOP")
    assert "no faster than 20 ms" in head
    assert first.startswith(
        "| FedQ, engine x | 0.200 (0.100 to 0.300) | 15000 |  | 1.0 | 0.50 | 100 | 10 % |"
    )
    assert second.startswith(
        "| plain PyTorch loop, 1 thread | 3.00 (1.00 to 6.00) | 300000 | 15.0 (10.0 to 20.0) | 2.0 | 5.0 |"
        " 50 |"
    )
    assert second.endswith("| 1e-06 |")


def test_a_turn_of_several_rounds_is_shown_as_a_round() -> None:
    ours, loop = (
        Entry(name, 1.0, 0.5, 1, 0.0, "", [Played(seconds, 20), Played(seconds, 40)])
        for name, seconds in (("fedq", 0.2), ("loop", 2.0))
    )
    head, _, _, first, second = (
        report.section(
            Race("W9", "A title", [ours, loop], [Work(2e9, 0.0), Work(4e9, 0.0)], 2), Limits(100.0, 10.0)
        )
        .replace("\n\n", "\n")
        .split("\n")
    )
    assert "Median of 2 turns of 2 rounds, each as a round: 15 local steps, 1.5 GFLOP" in head
    assert "no faster than 15 ms" in head
    assert first.startswith("| FedQ,  | 0.100 (0.100 to 0.100) | 7500 |")
    assert "| 10.0 (10.0 to 10.0) |" in second


def test_a_table_replaces_the_one_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n<!-- measured: W1 -->\n<!-- end: W1 -->\nb\n<!-- measured: W2 -->\nkept\n<!-- end: W2 -->\n"
    )
    for text in ("old", r"new \1"):
        report.put(page, "W1", text)
    assert (
        page.read_text()
        == "a\n<!-- measured: W1 -->\nnew \\1\n<!-- end: W1 -->\nb\n<!-- measured: W2 -->\nkept\n<!-- end: W2"
        " -->\n"
    )


def test_a_page_without_the_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(ValueError, match="markers of W1"):
        report.put(page, "W1", "text")


def test_the_page_on_performance_has_all_markers(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(Path("docs/performance.md").read_text())
    others = ("machine", "startup", "seeds", "population", "bf16", "flute")
    for name in (*WORKLOADS, *others):
        report.put(page, name, "text")


@pytest.mark.parametrize(
    ("value", "text"), [(0.012345, "0.0123"), (1.5, "1.50"), (123.4, "123"), (123456.0, "123456"), (0.0, "0")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert report.significant(value) == text
