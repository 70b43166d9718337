import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.platform.status import Status
from fedq.event_positions import Position

STATUSES = st.none() | st.sampled_from(Status)


@given(
    STATUSES, st.lists(st.tuples(STATUSES, st.integers(0, 10**9 - 1)), max_size=50), st.integers(0, 10**9 - 1)
)
def test_a_position_survives_being_written_and_read(
    experiment: Status | None, runs: list[tuple[Status | None, int]], told: int
) -> None:
    position = Position(experiment, [status for status, _ in runs], [round for _, round in runs], told)
    assert Position.parse(str(position), len(runs)) == position


def test_runs_that_stand_at_one_place_are_written_once() -> None:
    position = Position(Status.RUNNING, [Status.RUNNING, *[Status.QUEUED] * 999], [12, *[0] * 999])
    assert str(position) == "r.r12.q0x999"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "r",
        "r.q0x3",
        "r.q0x999999999",
        "r.q",
        "r.z0x2",
        "r.q0.q-1",
        "r.q0x2.",
        "r.q0x2.d",
        "r.q0x2.d3.d3",
        "r.q0x2.d-1",
        "r.q0x²",
    ],
)
def test_malformed_positions_of_two_runs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="event"):
        Position.parse(text, 2)
