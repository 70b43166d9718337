"""What is drawn of a paper's figure."""

import pytest

from api.reproductions.picture import names_in_a_line


@pytest.mark.parametrize(
    ("names", "width_in", "expected"),
    [(["alpha = 0.25"] * 5, 4.0, 2), (["FedAvg", "FedLin"], 8.0, 6), (["by p_k, simple average, mu = 1"], 3.0, 1), ([], 4.0, 5)],
)
def test_as_many_names_stand_in_a_line_of_the_legend_as_are_wide_enough(names: list[str], width_in: float, expected: int) -> None:
    assert names_in_a_line(names, width_in) == expected
