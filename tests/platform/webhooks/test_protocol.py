"""Deliveries that fail are tried again for about a day, ever more seldom, and not all at once."""

from itertools import count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.platform.webhooks.protocol import FIRST_PAUSE_S, JITTER, LONGEST_PAUSE_S, RETRIES, pause_s


def pauses(chance: float) -> list[float]:
    return [
        pause
        for pause in takewhile(lambda pause: pause is not None, (pause_s(n, chance) for n in count(1)))
        if pause is not None
    ]


def test_the_pauses_triple_up_to_six_hours() -> None:
    assert pauses(0.5) == [5, 15, 45, 135, 405, 1215, 3645, 10935, 21600, 21600, 21600]


@given(st.floats(0, 1, exclude_max=True))
def test_whatever_the_jitter_it_goes_on_for_about_a_day_and_ends(chance: float) -> None:
    assert len(pauses(chance)) == RETRIES
    assert 18 < sum(pauses(chance)) / 3_600 < 28


@given(st.integers(1, RETRIES), st.floats(0, 1, exclude_max=True))
def test_each_pause_is_within_its_jitter_and_bounds(failures: int, chance: float) -> None:
    pause = pause_s(failures, chance)
    assert pause is not None
    middle = pause_s(failures, 0.5)
    assert middle is not None
    assert abs(pause - middle) <= JITTER * middle + 1e-9
    assert FIRST_PAUSE_S * (1 - JITTER) <= pause <= LONGEST_PAUSE_S * (1 + JITTER)


@pytest.mark.parametrize(("asked", "granted"), [(0.0, 5.0), (60.0, 60.0), (1e9, LONGEST_PAUSE_S)])
def test_a_receiver_that_asks_for_a_longer_pause_gets_it_within_reason(asked: float, granted: float) -> None:
    assert pause_s(1, 0.5, asked) == granted


def test_asking_for_a_pause_is_no_way_to_be_tried_for_ever() -> None:
    assert pause_s(RETRIES + 1, 0.5, 60.0) is None
