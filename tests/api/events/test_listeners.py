"""Events that one listener receives, and those it still misses."""

import json
from collections.abc import Iterable

from api.events.feed import SerializedRow, Snapshot
from api.events.listeners import Event, Listener
from fedcore.platform.status import Status
from fedq.event_positions import Position

QUEUED, RUNNING, SUCCEEDED = Status.QUEUED, Status.RUNNING, Status.SUCCEEDED


def _line(run_id: str, round: int) -> SerializedRow:
    return SerializedRow(run_id, round, f"{run_id}:{round}")


def _told(events: Iterable[Event]) -> list[str]:
    return [event.data for event in events]


def test_rows_are_told_in_order_and_once() -> None:
    listener = Listener("exp", ["a", "b"], Position.start(2))
    assert _told(listener.rounds([_line("a", 1), _line("a", 2), _line("b", 1)])) == ["a:1", "a:2", "b:1"]
    assert _told(listener.rounds([_line("a", 2), _line("a", 3)])) == ["a:3"]


def test_rows_behind_a_gap_wait_until_the_gap_is_read() -> None:
    listener = Listener("exp", ["a"], Position.start(1))
    news = Snapshot(RUNNING, {"a": (RUNNING, 3)}, [_line("a", 3)])
    assert _told(listener.rounds(news.lines)) == []
    assert listener.missing(news) == {"a": 0}
    assert _told(listener.rounds([_line("a", round) for round in (1, 2, 3)])) == ["a:1", "a:2", "a:3"]
    assert listener.missing(news) == {}


def test_an_end_is_told_after_the_rows_and_of_the_experiment_last() -> None:
    listener = Listener("exp", ["a"], Position.start(1))
    news = Snapshot(SUCCEEDED, {"a": (SUCCEEDED, 1)})
    assert list(listener.beginnings(news)) == []
    assert [json.loads(event.data)["run_id"] for event in listener.endings(news)] == ["a", None]
    assert listener.finished


def test_a_status_is_told_once() -> None:
    listener = Listener("exp", ["a"], Position.start(1))
    news = Snapshot(QUEUED, {"a": (QUEUED, 0)})
    assert len(list(listener.beginnings(news))) == 2
    assert list(listener.beginnings(news)) == []
    assert not listener.finished
