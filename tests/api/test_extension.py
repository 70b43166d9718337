"""`POST /v1/experiments/{id}/extend`, on both databases."""

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.storage import open_storage
from fedcore.platform.store import Database
from fedcore.settings import Settings
from fedq.client import Client
from fedq.schemas import RoundEvent, StatusEvent
from tests.builders.experiments import submit_over_http
from tests.builders.runs import carry_out
from tests.builders.specifications import TWO_ARMS, Document, merged
from tests.support.live import serving

pytestmark = pytest.mark.usefixtures("database_url")


def _extend(http: httpx.Client, made: Document, **wanted: object) -> httpx.Response:
    return http.post(f"/v1/experiments/{made['id']}/extend", json=wanted)


def test_an_ended_experiment_goes_on_and_its_results_are_of_all_rounds_and_seeds(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    made = submit_over_http(http, TWO_ARMS)
    carry_out(rows, open_storage(settings.storage), 6)
    before = {run["id"]: run for run in http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]}
    first, again = (_extend(http, made, rounds=5, seeds=[9]) for _ in range(2))
    assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
    extended = first.json()
    assert (extended["status"], extended["finished_at"], extended["specification"]["seeds"]) == (
        "running",
        None,
        [0, 1, 2, 9],
    )
    assert (extended["progress"]["rounds_done"], extended["progress"]["rounds_total"]) == (18, 40)
    (history,) = extended["provenance"]["extensions"]
    assert (history["rounds_before"], history["rounds"], history["seeds_added"]) == (3, 5, [9])
    assert extended["provenance"]["specification_sha256"] != made["provenance"]["specification_sha256"]
    carry_out(rows, open_storage(settings.storage), 8)
    results = http.get(f"/v1/experiments/{made['id']}/results").json()
    assert [(arm["index"], arm["seeds"]) for arm in results["arms"]] == [(0, [0, 1, 2, 9]), (1, [0, 1, 2, 9])]
    for run in http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]:
        assert (run["status"], run["rounds_done"]) == ("succeeded", 5)
        assert [row["round"] for row in http.get(f"/v1/runs/{run['id']}/metrics").json()["items"]] == [
            1,
            2,
            3,
            4,
            5,
        ]
        assert run["id"] in before or run["seed"] == 9


@pytest.mark.parametrize(
    ("changes", "wanted", "status", "told"),
    [
        ({}, {"rounds": 2}, 409, "has 3 rounds, which cannot be reduced to 2"),
        ({}, {"rounds": 10_000_000}, 422, "/rounds"),
        ({}, {"seeds": [-1]}, 422, "/seeds/0"),
        (
            {"participation": {"kind": "trace", "rounds": [[0], [1], [0]]}},
            {"rounds": 4},
            422,
            "a row for each of the 4 rounds",
        ),
    ],
)
def test_impossible_extensions_are_refused_with_the_reason(
    http: httpx.Client, changes: Document, wanted: Document, status: int, told: str
) -> None:
    answer = _extend(http, submit_over_http(http, merged(TWO_ARMS, changes)), **wanted)
    assert (answer.status_code, told in answer.text) == (status, True), answer.text


def test_listeners_hear_of_new_runs_and_those_who_heard_the_end_of_what_came_after(
    app: FastAPI, admin_key: str, rows: Database, settings: Settings
) -> None:
    with serving(app) as url, Client(url, admin_key) as client:
        id = client.submit(TWO_ARMS).id
        events = client.stream(id)
        assert isinstance(next(events), StatusEvent)
        client.extend(id, rounds=4, seeds=[9])
        carry_out(rows, open_storage(settings.storage), 8)
        told = [(event.run_id, event.round) for event in events if isinstance(event, RoundEvent)]
        assert sorted(told) == [
            (run.id, round)
            for run in sorted(client.runs(id), key=lambda run: run.id)
            for round in (1, 2, 3, 4)
        ]
