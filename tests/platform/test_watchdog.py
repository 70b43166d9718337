"""Watchdogs tell a silent process from one that is slow, starts slowly, or had no time to run."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from fedcore.platform.watchdog import (
    DESCRIPTOR,
    PERIOD_S,
    SILENT_S,
    START_S,
    Watchdog,
    make_resetter,
    reset_from_thread,
)

LOOK_S = 0.2
RESETS = f"""
import os
from fedcore.platform.watchdog import make_resetter
reset = make_resetter()
reset()
print(os.environ.get({DESCRIPTOR!r}))
"""


class Watched:
    """A process that does nothing, watched by a clock of the test's own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.watchdog = Watchdog(clock=lambda: self.now_s)

    def expired_within(self, for_s: float, every_s: float = LOOK_S) -> bool:
        """True if it is taken to hang within the next seconds, while the supervisor looks
        regularly.
        """
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += every_s
            if self.watchdog.expired():
                return True
        return False


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.watchdog.close()


@pytest.fixture
def reset(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Function that the process calls."""
    monkeypatch.setenv(DESCRIPTOR, str(watched.watchdog.writer))
    return make_resetter()


def test_a_process_hangs_when_it_was_silent_for_long_and_not_before(
    watched: Watched, reset: Callable[[], None]
) -> None:
    for _ in range(3):
        reset()
        assert not watched.expired_within(SILENT_S - 1)
    reset()
    assert watched.expired_within(SILENT_S + 1)


def test_a_process_that_has_not_begun_may_take_its_time(watched: Watched, reset: Callable[[], None]) -> None:
    assert not watched.expired_within(START_S - 1)
    reset()
    assert not watched.expired_within(SILENT_S - 1)
    watched.watchdog.begin()
    assert not watched.expired_within(START_S - 1)
    assert watched.expired_within(2)


def test_beats_of_an_earlier_process_say_nothing_of_the_next(
    watched: Watched, reset: Callable[[], None]
) -> None:
    reset()
    watched.watchdog.begin()
    assert not watched.expired_within(START_S - 1)


def test_time_in_which_the_supervisor_did_not_run_does_not_count(
    watched: Watched, reset: Callable[[], None]
) -> None:
    reset()
    assert not watched.expired_within(1)
    for _ in range(10):
        # The machine is suspended for an hour.
        assert not watched.expired_within(3_600, every_s=3_600)
    assert watched.expired_within(SILENT_S)


def test_a_reset_waits_for_no_supervisor_that_does_not_read(
    watched: Watched, reset: Callable[[], None]
) -> None:
    for _ in range(200_000):
        reset()
    assert not watched.expired_within(SILENT_S - 1)


def test_a_process_resets_the_watchdog_that_it_inherits_and_does_not_hand_it_on() -> None:
    watched = Watched()
    writer = watched.watchdog.writer
    environment = os.environ | {DESCRIPTOR: str(writer), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", RESETS],
        env=environment,
        pass_fds=[writer],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "None\n"
    assert watched.expired_within(SILENT_S + 1), "it did not begin"
    watched.watchdog.close()


def test_a_process_outlives_its_supervisor_and_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setenv(DESCRIPTOR, str(watched.watchdog.writer))
    reset = make_resetter()
    watched.watchdog.close()
    reset()
    make_resetter()()
    reset_from_thread()


def test_resets_are_much_more_frequent_than_looks_for_silence() -> None:
    assert PERIOD_S <= SILENT_S / 10
