"""Searches and stopped runs as the API returns them."""

import httpx
import pytest
from fastapi import FastAPI
from rich.console import Console

from fedcore.platform.store import Database
from fedq.cli.experiments import search_view
from fedq.client import Client
from fedq.client.events import Seen, _poll
from fedq.client.transport import finish_each
from fedq.schemas import DecisionEvent, SearchPage
from tests.api.events.test_routes import Event, _listening
from tests.builders.claims import claim
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, Document
from tests.platform.store.test_search import HALVING, LOSSES, come, drain
from tests.support.access import bearer
from tests.support.live import serving

NINE: Document = {
    **TINY,
    "rounds": 9,
    "seeds": [0, 1],
    "sweep": {"local.lr": [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09]},
    "search": HALVING | {"kind": "successive_halving"},
}


@pytest.fixture
def ended(http: httpx.Client, rows: Database) -> Document:
    """An experiment whose search is over."""
    made = submit_over_http(http, NINE)
    drain(rows)
    return http.get(f"/v1/experiments/{made['id']}").json()


def test_a_search_tells_what_it_decided_and_on_what(http: httpx.Client, ended: Document) -> None:
    place = f"/v1/experiments/{ended['id']}/search"
    found = SearchPage.model_validate(http.get(place).json())
    assert (found.kind, found.metric, found.mode, found.rungs, found.arms) == (
        "successive_halving",
        "suboptimality",
        "min",
        [1, 3],
        9,
    )
    promoted = [
        (one.arm, one.round, one.rank, one.field, one.places)
        for one in found.items
        if one.verdict == "promoted"
    ]
    assert sorted(promoted) == [(1, 1, 3, 9, 3), (3, 1, 1, 9, 3), (3, 3, 1, 3, 1), (5, 1, 2, 9, 3)]
    assert {one.arm: one.value for one in found.items if one.rung == 0} == {
        arm: loss + 0.5 for arm, loss in enumerate(LOSSES)
    }
    console = Console(width=120)
    with console.capture() as capture:
        console.print(search_view(found))
    shown = " ".join(capture.get().split())
    assert "lr=0.04 1 1.5 1 of 9 3 promoted" in shown
    # A page at a time.
    pages = [http.get(place, params={"limit": 7, "cursor": after}).json() for after in (0, 7, 12)]
    assert [[one["sequence"] for one in page["items"]] for page in pages] == [
        list(range(1, 8)),
        list(range(8, 13)),
        [],
    ]
    assert [page["next"] for page in pages] == [7, 12, 12]


def test_arms_and_runs_say_where_they_were_stopped(http: httpx.Client, ended: Document) -> None:
    assert ended["status"] == "succeeded"
    last = {1: (3, "stopped"), 3: (3, "promoted"), 5: (3, "stopped")}
    assert [(arm["rung"], arm["verdict"]) for arm in ended["arms"]] == [
        last.get(arm, (1, "stopped")) for arm in range(9)
    ]
    runs = http.get(f"/v1/experiments/{ended['id']}/runs").json()["items"]
    told = {(run["rounds_done"], run["stop_reason"], run["has_model"]) for run in runs}
    assert told == {(1, "rung", True), (3, "rung", True), (9, None, True)}
    results = http.get(f"/v1/experiments/{ended['id']}/results").json()["arms"]
    assert [(arm["stopped"], arm["metrics"]["suboptimality"]["final"]["n"]) for arm in results] == [
        (0 if arm == 3 else 2, 2) for arm in range(9)
    ]


def test_decisions_are_events_each_told_once_in_the_order_in_which_they_were_made(
    app: FastAPI, admin_key: str, rows: Database
) -> None:
    with serving(app) as url, httpx.Client(base_url=url, timeout=60, headers=bearer(admin_key)) as http:
        made = submit_over_http(http, NINE)
        drain(rows)
        events = listen(http, made, None)
        told = [
            (event.data["rung"], event.data["rank"], event.data["verdict"])
            for event in events
            if event.kind == "decision"
        ]
        assert told == [(0, rank, "promoted" if rank <= 3 else "stopped") for rank in range(1, 10)] + [
            (1, rank, "promoted" if rank <= 1 else "stopped") for rank in range(1, 4)
        ]
        assert events[-1].data["run_id"] is None
        cut = [index for index, event in enumerate(events) if event.kind == "decision"][4]
        assert listen(http, made, events[cut].id) == events[cut + 1 :]


def test_the_client_is_told_of_decisions_where_it_has_to_poll_too(
    app: FastAPI, admin_key: str, rows: Database
) -> None:
    with serving(app) as url, Client(url, admin_key) as client:
        id = client.submit(NINE).id
        drain(rows)
        streamed = [event for event in client.stream(id) if isinstance(event, DecisionEvent)]
        polled = [
            event
            for event in finish_each(_poll(client._transport, id, Seen()))
            if isinstance(event, DecisionEvent)
        ]
        assert streamed == polled
        assert [
            event.model_dump(exclude={"experiment_id"})
            for event in sorted(polled, key=lambda one: one.sequence)
        ] == [one.model_dump() for one in client.search(id).items]


def listen(http: httpx.Client, made: Document, last: str | None) -> list[Event]:
    with _listening(http, made, last) as events:
        return list(events)


def test_a_run_at_its_rung_waits_and_is_counted_so(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http, NINE)
    come(rows, claim(rows))
    run, *_ = http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]
    assert (run["status"], run["next_rung"], run["worker"]) == ("waiting", 1, None)
    assert run["waiting_since"] is not None
    (queue,) = http.get("/v1/queue").json()["items"]
    assert (queue["waiting"], queue["queued"], queue["rounds_left"]) == (1, 17, 17 * 9)
    assert http.get("/v1/experiments", params={"status": "running"}).json()["items"][0]["id"] == made["id"]


def test_a_dry_run_says_what_a_search_saves(http: httpx.Client) -> None:
    plan = http.post("/v1/experiments", params={"dry_run": True}, json=NINE).json()
    assert plan["rounds"] == 2 * 9 * 9
    assert plan["search"]["stretches"] == [
        {"until": 1, "arms": 9},
        {"until": 3, "arms": 3},
        {"until": 9, "arms": 1},
    ]
    assert plan["search"]["rounds"] == 2 * (9 + 3 * 2 + 6)
    assert plan["search"]["saving"] == pytest.approx(1 - 42 / 162)


def test_an_experiment_without_a_search_says_so(http: httpx.Client) -> None:
    made = submit_over_http(http)
    answer = http.get(f"/v1/experiments/{made['id']}/search")
    assert answer.status_code == 404
    assert "has no search" in answer.json()["detail"]
    assert [arm["verdict"] for arm in made["arms"]] == [None]


def test_a_search_that_does_not_fit_its_sweep_is_refused_at_its_field(http: httpx.Client) -> None:
    answer = http.post("/v1/experiments", json={**NINE, "search": HALVING | {"kind": "asha", "eta": 10}})
    assert answer.status_code == 422
    (flaw,) = answer.json()["errors"]
    assert flaw["pointer"] == "/search/eta"
