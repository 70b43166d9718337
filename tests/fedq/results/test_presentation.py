"""Results and figures in words."""

import pytest

from fedq.results import presentation


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, presentation.UNKNOWN),
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (59.9, "60 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (7_530, "2 h 5 min"),
        (86_400, "1 d"),
        (180_000, "2 d 2 h"),
    ],
)
def test_durations_have_two_units(seconds: float | None, text: str) -> None:
    assert presentation.duration(seconds) == text
