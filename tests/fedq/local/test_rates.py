"""The file of rates at which `fedq run` did its work."""

from pathlib import Path

import pytest

from fedq.local.rates import FILE, LATEST, add_rates, read_rates


def test_the_latest_rates_of_each_kind_are_kept(tmp_path: Path) -> None:
    home = tmp_path / "new"
    assert read_rates(home) == {}
    add_rates(home, [("a", float(number)) for number in range(1, LATEST + 3)])
    add_rates(home, [("b", 0.5), ("a", 100.0)])
    assert read_rates(home) == {"a": [*map(float, range(4, LATEST + 3)), 100.0], "b": [0.5]}
    assert [file.name for file in home.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"a": 1}', '{"a": [0]}', '{"a": [-1.0]}', '{"a": [NaN]}']
)
def test_a_file_that_is_no_file_of_rates_counts_as_none_and_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert read_rates(tmp_path) == {}
    add_rates(tmp_path, [("a", 1.0)])
    assert read_rates(tmp_path) == {"a": [1.0]}


def test_a_home_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("")
    add_rates(home, [("a", 1.0)])
    assert home.read_text() == ""
    assert read_rates(home) == {}
