"""Actions on experiments, on both databases."""

from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import httpx
import pytest

from fedcore.platform.storage import open_storage
from fedcore.platform.store import Database, runs
from fedcore.settings import Settings
from tests.builders.claims import claim, commit, end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, TWO_ARMS, Document
from workers.reconciler import remove_due

pytestmark = pytest.mark.usefixtures("database_url")

CALLS = ("cancel", "pause", "resume", "retry")


def _call(http: httpx.Client, made: Document, call: str) -> httpx.Response:
    return http.post(f"/v1/experiments/{made['id']}/{call}")


def _status(http: httpx.Client, made: Document, call: str) -> str:
    answer = _call(http, made, call)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["status"])


def test_waiting_runs_are_paused_and_queued_again_at_once(http: httpx.Client) -> None:
    made = submit_over_http(http)
    assert [_status(http, made, call) for call in ("pause", "pause", "resume", "resume")] == [
        "paused",
        "paused",
        "queued",
        "queued",
    ]


def test_waiting_runs_are_cancelled_and_retried(http: httpx.Client) -> None:
    made = submit_over_http(http)
    assert [_status(http, made, call) for call in ("cancel", "cancel", "retry", "retry")] == [
        "cancelled",
        "cancelled",
        "queued",
        "queued",
    ]


def test_a_running_run_is_cancelled_when_its_worker_gives_it_up(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    held = commit(rows, claim(rows), [report(1)])
    assert _status(http, made, "cancel") == "running"
    with rows.transaction() as session:
        runs.release(session, held)
    assert http.get(f"/v1/experiments/{made['id']}").json()["status"] == "cancelled"


def test_a_retried_run_keeps_its_rounds(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    held = commit(rows, claim(rows), [report(1)])
    with rows.transaction() as session:
        runs.fail(session, held, "out of memory", max_attempts=0)
    failed = http.get(f"/v1/experiments/{made['id']}").json()
    assert (failed["status"], failed["error"]) == ("failed", "out of memory")
    again = _call(http, made, "retry").json()
    assert (again["status"], again["error"], again["progress"]["rounds_done"]) == ("running", None, 1)


def test_a_run_that_failed_says_when_it_is_tried_again_until_somebody_asks_for_it_at_once(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http)
    held = claim(rows)
    with rows.transaction() as session:
        runs.fail(session, held, "OSError: no space left on device", max_attempts=3, backoff_s=200)
    (run,) = http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]
    assert (run["status"], run["attempts"], run["error"]) == ("queued", 1, "OSError: no space left on device")
    pause = datetime.fromisoformat(run["next_try_at"]) - datetime.fromisoformat(run["started_at"])
    assert timedelta(seconds=100) <= pause <= timedelta(seconds=260)
    assert [_status(http, made, call) for call in ("pause", "resume")] == ["paused", "running"]
    assert http.get(f"/v1/runs/{run['id']}").json()["next_try_at"] is None


@pytest.mark.parametrize("call", ["cancel", "pause", "resume", "retry"])
def test_an_experiment_that_has_succeeded_cannot_be_changed_any_more(
    http: httpx.Client, rows: Database, call: str
) -> None:
    made = submit_over_http(http)
    end_runs(rows, lambda _: [report(1), report(2), report(3)], 1)
    answer = _call(http, made, call)
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:fedq:problem:conflict"
    assert made["id"] in answer.json()["detail"]


@pytest.mark.parametrize("call", CALLS)
def test_missing_experiments_cannot_be_changed(http: httpx.Client, call: str) -> None:
    assert http.post(f"/v1/experiments/exp_0/{call}").status_code == 404


def test_name_tags_and_priority_can_be_changed_one_by_one(http: httpx.Client) -> None:
    made = submit_over_http(http)
    place = f"/v1/experiments/{made['id']}"
    assert http.patch(place, json={"name": "renamed"}).json()["name"] == "renamed"
    assert http.patch(place, json={"tags": ["a", "b"]}).json()["tags"] == ["a", "b"]
    now = http.patch(place, json={"priority": 9}).json()
    assert (now["name"], now["tags"], now["priority"]) == ("renamed", ["a", "b"], 9)
    assert [run["priority"] for run in http.get(f"{place}/runs").json()["items"]] == [9]
    assert [item["id"] for item in http.get("/v1/experiments", params={"tag": "b"}).json()["items"]] == [
        made["id"]
    ]
    assert http.get("/v1/experiments", params={"tag": "small"}).json()["items"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"status": "paused"}, "/status"),
        ({"priority": 10}, "/priority"),
        ({"name": ""}, "/name"),
        ({"tags": ["x" * 65]}, "/tags/0"),
        ({"tags": ["a", "b,c"]}, "/tags/1"),
    ],
)
def test_a_change_that_is_not_possible_is_pointed_at(
    http: httpx.Client, change: Document, pointer: str
) -> None:
    answer = http.patch(f"/v1/experiments/{submit_over_http(http)['id']}", json=change)
    assert answer.status_code == 422
    assert [flaw["pointer"] for flaw in answer.json()["errors"]] == [pointer]


def test_an_experiment_is_deleted_with_its_runs_rows_and_files(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    other = submit_over_http(http, {**TINY, "name": "other"})
    made = submit_over_http(http, TWO_ARMS)
    carry_out(rows, open_storage(settings.storage), 7)
    run_ids = [run["id"] for run in http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]]
    kept = [run["id"] for run in http.get(f"/v1/experiments/{other['id']}/runs").json()["items"]]
    assert _folders(settings) == sorted(run_ids + kept)
    assert http.delete(f"/v1/experiments/{made['id']}").status_code == 204
    assert http.get(f"/v1/experiments/{made['id']}").status_code == 404
    assert http.get(f"/v1/runs/{run_ids[0]}/metrics").status_code == 404
    assert http.delete(f"/v1/experiments/{made['id']}").status_code == 404
    remove_due(rows, open_storage(settings.storage), Event())
    assert _folders(settings) == kept


def _folders(settings: Settings) -> list[str]:
    return sorted(folder.name for folder in Path(settings.storage).iterdir())
