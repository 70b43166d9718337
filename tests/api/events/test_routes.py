"""Server-sent events from a real server: everything is told, in order, once, whoever hangs up
when.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from threading import Thread
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from httpx_sse import connect_sse
from sqlalchemy import make_url

from api.events.routes import StreamLimit
from fedcore.platform.access import Token
from fedcore.platform.store import Database, keys, runs
from fedcore.settings import Settings
from fedq.schemas import KeyEdit
from tests.builders.claims import claim, commit, end_run, end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, Document
from tests.support.access import bearer, key_for
from tests.support.asgi import application
from tests.support.live import serving
from tests.support.polling import eventually

TIMEOUT_S = 20.0


class Event(NamedTuple):
    kind: str
    id: str
    data: Document


@pytest.fixture
def http(app: FastAPI, admin_key: str, caplog: pytest.LogCaptureFixture) -> Iterator[httpx.Client]:
    """A client of the application behind a real server, which must log no error."""
    with (
        serving(app) as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S, headers=bearer(admin_key)) as client,
    ):
        yield client
    assert [entry.message for entry in caplog.get_records("call") if entry.levelname == "ERROR"] == []


@contextmanager
def _listening(
    http: httpx.Client, made: Document, last: str | None = None, **parameters: float | str
) -> Iterator[Iterator[Event]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with connect_sse(
        http, "GET", f"/v1/experiments/{made['id']}/events", headers=headers, params=parameters
    ) as source:
        yield (Event(event.event, event.id, event.json()) for event in source.iter_sse())


def _listen(http: httpx.Client, made: Document, last: str | None = None, **parameters: str) -> list[Event]:
    """All events until the stream ends."""
    with _listening(http, made, last, **parameters) as events:
        return list(events)


def _rows(events: Sequence[Event]) -> dict[str, list[int]]:
    """The rounds told of each run, in the order they were told."""
    told: dict[str, list[int]] = {}
    for event in events:
        if event.kind == "round":
            told.setdefault(event.data["run_id"], []).append(event.data["round"])
    return told


def _statuses(events: Sequence[Event], run_id: str | None) -> list[str]:
    return [
        event.data["status"] for event in events if event.kind == "status" and event.data["run_id"] == run_id
    ]


def _three_rounds(_: Any) -> list[Any]:
    return [report(round, train_loss=1.0 / round) for round in (1, 2, 3)]


def test_a_finished_experiment_is_told_whole_and_the_stream_ends(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, TWO_ARMS)
    claims = end_runs(rows, _three_rounds, 6)
    events = _listen(http, made)
    assert _rows(events) == {held.run_id: [1, 2, 3] for held in claims}
    assert all(_statuses(events, held.run_id) == ["succeeded"] for held in claims)
    assert (events[-1].kind, events[-1].data) == (
        "status",
        {"experiment_id": made["id"], "run_id": None, "status": "succeeded", "rounds_done": None},
    )
    assert events[0].data["train_loss"] == 1.0


def test_resumed_after_any_event_the_stream_tells_the_rest(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, {**TWO_ARMS, "seeds": [0, 1]})
    end_runs(rows, _three_rounds, 4)
    events = _listen(http, made)
    for count, event in enumerate(events, 1):
        assert _listen(http, made, event.id) == events[count:]


@pytest.mark.usefixtures("database_url")
def test_readers_of_results_are_told_what_came_after_them_and_nothing_twice(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http, {**TINY, "seeds": [0, 1]})
    first, second = (run["id"] for run in http.get(f"/v1/experiments/{made['id']}/runs").json()["items"])

    def position() -> str:
        return http.get(f"/v1/experiments/{made['id']}/results").json()["position"]

    positions = [position()]
    held = commit(rows, claim(rows), [report(1), report(2)])
    positions.append(position())
    end_run(rows, commit(rows, held, [report(3)]))
    positions.append(position())
    end_runs(rows, _three_rounds, 1)
    heard = [_listen(http, made, since=place) for place in (*positions, position())]
    both = {first: [1, 2, 3], second: [1, 2, 3]}
    assert [_rows(events) for events in heard] == [both, {**both, first: [3]}, {second: [1, 2, 3]}, {}]
    assert [_statuses(events, first) for events in heard] == [["succeeded"], ["succeeded"], [], []]
    assert [_statuses(events, None) for events in heard] == [["succeeded"], ["succeeded"], ["succeeded"], []]


def test_new_listener_is_told_how_things_stand_and_then_what_happens(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http, {**TINY, "seeds": [0, 1]})
    held = commit(rows, claim(rows), [report(1), report(2)])
    with _listening(http, made, since="now") as events:
        told = list(islice(events, 4))
        assert (_rows(told), _statuses(told, held.run_id), _statuses(told, None)) == (
            {held.run_id: [2]},
            ["running"],
            ["running"],
        )
        commit(rows, held, [report(3)])
        assert _rows([next(events)]) == {held.run_id: [3]}
        assert _rows(_begun(http, made, told[-1].id, since="now")) == {held.run_id: [3]}


def _begun(http: httpx.Client, made: Document, last: str, **parameters: str) -> list[Event]:
    """The first event of a listener that resumes."""
    with _listening(http, made, last, **parameters) as events:
        return [next(events)]


@pytest.mark.usefixtures("database_url")
def test_a_listener_that_hangs_up_now_and_then_misses_nothing_of_a_live_experiment(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http, {**TINY, "rounds": 30, "seeds": [0, 1]})
    writer = Thread(target=write_live, args=(rows, 30, 2))
    writer.start()
    events: list[Event] = []
    while not events or _statuses(events[-1:], None) != ["succeeded"]:
        with _listening(http, made, events[-1].id if events else None) as heard:
            events += islice(heard, 7)
    writer.join()
    run_ids = [run["id"] for run in http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]]
    assert _rows(events) == {run_id: list(range(1, 31)) for run_id in run_ids}
    assert _statuses(events, None)[-1] == "succeeded"
    assert len(events) == len({event.id for event in events})


def write_live(database: Database, rounds: int, count: int) -> None:
    """Take `count` runs in turn and commit their rounds one by one."""
    for _ in range(count):
        held = claim(database)
        for round in range(1, rounds + 1):
            held = commit(database, held, [report(round)])
        end_run(database, held)


def test_listeners_hear_the_same(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, {**TINY, "rounds": 20})
    heard: list[list[Event]] = []
    listeners = [Thread(target=lambda: heard.append(_listen(http, made))) for _ in range(5)]
    for listener in listeners:
        listener.start()
    write_live(rows, 20, 1)
    for listener in listeners:
        listener.join()
    assert len(heard) == 5
    assert all(list(_rows(events).values()) == [list(range(1, 21))] for events in heard)


def test_listener_who_joins_while_nothing_changes_is_told_how_things_stand(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http)
    with _listening(http, made) as first:
        assert [event.data["status"] for event in islice(first, 2)] == ["queued", "queued"]
        with _listening(http, made) as second:
            assert [event.data["status"] for event in islice(second, 2)] == ["queued", "queued"]


def test_nothing_is_polled_when_nobody_listens_any_more(http: httpx.Client, app: FastAPI) -> None:
    with _listening(http, submit_over_http(http)) as events:
        next(events)
        assert app.state.feed._poller
    eventually(app.state.feed._poller.done)


def test_silence_is_filled_with_heartbeats(http: httpx.Client) -> None:
    # Longer than the poller's pauses: what it finds unchanged is silence, too.
    with _listening(http, submit_over_http(http), heartbeat=0.5) as events:
        kinds = [event.kind for event in islice(events, 4)]
    assert kinds == ["status", "status", "heartbeat", "heartbeat"]


def test_a_stream_outlives_a_database_that_is_away_for_a_while(
    http: httpx.Client, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    made = submit_over_http(http)
    with _listening(http, made, heartbeat=0.1) as events:
        assert [event.kind for event in islice(events, 2)] == ["status", "status"]
        with _without_runs(settings):
            assert [event.kind for event in islice(events, 6)] == ["heartbeat"] * 6
        assert "event poll failed" in capsys.readouterr().err
        http.post(f"/v1/experiments/{made['id']}/cancel")
        assert [event.data["status"] for event in events if event.kind == "status"] == [
            "cancelled",
            "cancelled",
        ]


@contextmanager
def _without_runs(settings: Settings) -> Iterator[None]:
    """A time in which every query for runs fails."""
    file = str(make_url(settings.database).database)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE run RENAME TO run_away")
        yield
        connection.execute("ALTER TABLE run_away RENAME TO run")


@pytest.mark.parametrize(
    "change",
    [{"scope": "read"}, {"expires_at": "2026-01-01T00:00:00Z"}, None],
    ids=["scope", "expiry", "revocation"],
)
def test_the_stream_ends_before_it_tells_anything_more_to_a_key_that_has_ended(
    app: FastAPI, http: httpx.Client, settings: Settings, rows: Database, change: Document | None
) -> None:
    app.state.stream_limit = StreamLimit(key_check_s=0.0)
    made, key = submit_over_http(http), key_for(settings.database)
    with (
        httpx.Client(base_url=http.base_url, timeout=TIMEOUT_S, headers=bearer(key)) as other,
        _listening(other, made) as events,
    ):
        assert [event.kind for event in islice(events, 2)] == ["status", "status"]
        with rows.transaction() as session:
            id = Token.parse(key).key_id
            keys.revoke(session, id) if change is None else keys.edit(
                session, id, KeyEdit.model_validate(change).model_dump(exclude_unset=True)
            )
        end_runs(rows, _three_rounds, 1)
        assert list(events) == []


def test_the_stream_ends_when_the_experiment_is_deleted(http: httpx.Client) -> None:
    made = submit_over_http(http)
    with _listening(http, made) as events:
        next(events)
        http.delete(f"/v1/experiments/{made['id']}")
        assert [event.data["run_id"] for event in events] == [None]


def test_listener_who_heard_of_the_end_hears_of_the_retry(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    http.post(f"/v1/experiments/{made['id']}/cancel")
    (*_, end) = _listen(http, made)
    http.post(f"/v1/experiments/{made['id']}/retry")
    end_runs(rows, _three_rounds, 1)
    events = _listen(http, made, end.id)
    assert list(_rows(events).values()) == [[1, 2, 3]]
    assert _statuses(events, None) == ["succeeded"]


def test_a_paused_run_is_told_before_the_stream_goes_silent(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    held = commit(rows, claim(rows), [report(1)])
    with _listening(http, made) as events:
        assert [event.kind for event in islice(events, 3)] == ["status", "status", "round"]
        http.post(f"/v1/experiments/{made['id']}/pause")
        with rows.transaction() as session:
            runs.release(session, held)
        assert {event.data["status"] for event in islice(events, 2)} == {"paused"}


@pytest.mark.parametrize("last", ["1", "s.s3x7", "r.q0x7", "é"])
def test_an_id_of_no_event_of_the_experiment_is_refused(http: httpx.Client, last: str) -> None:
    made = submit_over_http(http, TWO_ARMS)
    answer = http.get(f"/v1/experiments/{made['id']}/events", params={"since": last})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "?since")
    answer = http.get(
        f"/v1/experiments/{made['id']}/events", headers=[(b"Last-Event-ID", last.encode("latin-1"))]
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "Last-Event-ID"


@pytest.fixture
def two_streams(settings: Settings, admin_key: str) -> Iterator[httpx.Client]:
    """A client of a service that allows two event streams per key."""
    app = application(settings)
    app.state.stream_limit = StreamLimit(2)
    with (
        serving(app) as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S, headers=bearer(admin_key)) as client,
    ):
        yield client


def test_a_key_holds_so_many_streams_open_and_no_more(two_streams: httpx.Client, settings: Settings) -> None:
    http = two_streams
    made, path = submit_over_http(http), "/v1/experiments/{id}/events"
    with _listening(http, made) as first, _listening(http, made) as second:
        assert next(first) == next(second)
        refused = http.get(path.format(**made))
        assert refused.status_code == 429
        assert refused.json()["type"] == "urn:fedq:problem:rate"
        assert "2 open event streams per key" in refused.json()["detail"]
        assert int(refused.headers["Retry-After"]) > 0
        another = bearer(key_for(settings.database))
        with (
            httpx.Client(base_url=http.base_url, timeout=TIMEOUT_S, headers=another) as other,
            _listening(other, made) as third,
        ):
            assert next(third).kind == "status"
    http.post(f"/v1/experiments/{made['id']}/cancel")
    assert eventually(lambda: http.get(path.format(**made)).status_code == 200)
    for _ in range(3):
        assert _listen(http, made)


def test_there_is_nothing_to_hear_of_what_is_not_there(http: httpx.Client) -> None:
    assert http.get("/v1/experiments/exp_0/events").status_code == 404
