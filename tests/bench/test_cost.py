"""The cost of another version, from the row that its own benchmark prints."""

import subprocess
from pathlib import Path

import pytest

from bench.cost import FIGURES, _of_checkout, main

PRINTS = """
import sys
assert sys.argv[1:3] == ["cost", "--figures=idle"], sys.argv
print("warming up")
print("idle stack | 1057 MB | 900 MB | no | 9 processes")
"""


def test_a_figure_of_another_checkout_is_what_its_own_benchmark_prints(tmp_path: Path) -> None:
    Path(tmp_path, "bench").mkdir()
    Path(tmp_path, "bench", "__init__.py").touch()
    Path(tmp_path, "bench", "__main__.py").write_text(PRINTS)
    assert _of_checkout(tmp_path, "idle", tmp_path) == (1057.0, "9 processes")


def test_a_figure_that_another_version_does_not_have_is_an_error(tmp_path: Path) -> None:
    Path(tmp_path, "bench").mkdir()
    Path(tmp_path, "bench", "__init__.py").touch()
    Path(tmp_path, "bench", "__main__.py").write_text(PRINTS)
    with pytest.raises(subprocess.CalledProcessError):
        _of_checkout(tmp_path, "unknown", tmp_path)


def test_a_figure_without_its_peer_is_printed_as_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--figures=W2-fedjax", f"--home={tmp_path}"])
    row = capsys.readouterr().out.split(" | ")
    assert row[:4] == ["W2, speed over FedJAX", "not measured", "at least 20 times", ""]


def test_targets_are_least_or_greatest_values() -> None:
    assert [FIGURES["help"].is_met(value) for value in (0.3, 0.31)] == [True, False]
    assert [FIGURES["W3-speed"].is_met(value) for value in (1.4, 1.39)] == [True, False]
