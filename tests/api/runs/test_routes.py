"""Runs, their rows and their files."""

import json
import re
from html import unescape

import httpx
import pytest
from fastapi import FastAPI
from safetensors.numpy import load

from fedcore.platform.access import Scope
from fedcore.platform.logging import LoggedEvent
from fedcore.platform.status import LogLevel
from fedcore.platform.storage import open_storage, read
from fedcore.platform.store import Database, runs
from fedcore.platform.store.leases import Claim
from fedcore.settings import Settings
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from tests.builders.claims import claim, commit, end_run, end_runs, finish, report
from tests.builders.experiments import submit_over_http
from tests.builders.runs import carry_out, finish_with_models
from tests.builders.specifications import TINY, TWO_ARMS, Document
from tests.builders.transactions import write
from tests.platform.store.test_telemetry import START, line, note, sample
from tests.support.access import key_for
from tests.support.asgi import application, calling
from tests.support.s3 import S3, Fault

RISING: Document = {**TINY, "name": "rising", "local": {"lr": 10.0, "steps": 1}}
"""Its suboptimality rises from round to round."""


def _runs(http: httpx.Client, made: Document) -> list[Document]:
    return http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]


def test_runs_are_listed_by_arm_and_seed_a_page_at_a_time(http: httpx.Client, database_url: str) -> None:
    made = submit_over_http(http, {**TWO_ARMS, "seeds": [9, 3]})
    place = f"/v1/experiments/{made['id']}/runs"
    first = http.get(place, params={"limit": 3}).json()
    rest = http.get(place, params={"limit": 3, "cursor": first["next"]}).json()
    assert [(run["arm"], run["seed"]) for run in first["items"] + rest["items"]] == [
        (0, 9),
        (0, 3),
        (1, 9),
        (1, 3),
    ]
    assert rest["next"] is None
    assert http.get("/v1/runs/" + first["items"][2]["id"]).json() == first["items"][2]


def test_a_run_says_who_has_it_and_how_far_it_is(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    commit(rows, claim(rows), [report(1)])
    (run,) = _runs(http, made)
    assert (run["status"], run["worker"], run["rounds_done"], run["rounds_total"]) == (
        "running",
        "worker-1",
        1,
        3,
    )
    assert (run["has_model"], run["has_checkpoint"], run["diverged"]) == (False, True, False)


def test_a_run_that_diverged_has_succeeded_and_says_where(http: httpx.Client, rows: Database) -> None:
    made = submit_over_http(http)
    end_runs(rows, lambda _: [report(1), report(2, diverged=True)], 1)
    (run,) = _runs(http, made)
    assert (run["status"], run["diverged"], run["diverged_round"], run["worker"]) == (
        "succeeded",
        True,
        2,
        None,
    )


def test_rows_are_polled_after_a_round(http: httpx.Client, rows: Database, database_url: str) -> None:
    submit_over_http(http, {**TINY, "rounds": 5})
    held = commit(
        rows,
        claim(rows),
        [report(round, train_loss=1.0 / round, extra={"x": [1.0, 2.0]}) for round in (1, 2, 3)],
    )
    place = f"/v1/runs/{held.run_id}/metrics"
    first = http.get(place, params={"limit": 2}).json()
    assert ([row["round"] for row in first["items"]], first["next"]) == ([1, 2], 2)
    assert (first["items"][1]["train_loss"], first["items"][1]["extra"]) == (0.5, {"x": [1.0, 2.0]})
    rest = http.get(place, params={"cursor": 2}).json()
    assert ([row["round"] for row in rest["items"]], rest["next"], rest["status"]) == ([3], 3, "running")
    none = http.get(place, params={"cursor": 3}).json()
    assert (none["items"], none["next"]) == ([], 3)


def test_the_page_of_a_run_has_its_latest_lists(
    http: httpx.Client, browser: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http, {**TINY, "rounds": 3})
    lists = {"x": [1.0], "per_class_accuracy": [0.5, float("nan")], "own": [[1.0, 2.0]]}
    held = commit(rows, claim(rows), [report(1, extra=lists), report(2)])
    page = browser.get(f"/runs/{held.run_id}").text
    (section,) = re.findall(r'data-lists="([^"]*)" data-round="1"', page)
    assert json.loads(unescape(section)) == [
        {
            "name": "per_class_accuracy",
            "title": "per class accuracy",
            "axes": ["class"],
            "values": [0.5, None],
        },
        {"name": "own", "title": "own", "axes": [], "values": [[1.0, 2.0]]},
    ]
    place = f"/v1/experiments/{made['id']}/results"
    for asked in ({"metric": "confusion_matrix"}, {"target": "confusion_matrix:0.5"}):
        refused = http.get(place, params=asked)
        assert refused.status_code == 422
        assert "is a matrix, which is stored and drawn, but not compared: use a number" in refused.text


def test_values_that_are_not_finite_are_absent(http: httpx.Client, rows: Database) -> None:
    submit_over_http(http)
    (held,) = end_runs(
        rows, lambda _: [report(1, train_loss=float("inf"), test_loss=float("nan"), diverged=True)], 1
    )
    (row,) = http.get(f"/v1/runs/{held.run_id}/metrics").json()["items"]
    assert (row["train_loss"], row["test_loss"]) == (None, None)


def test_the_final_model_is_that_of_the_library(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    made = submit_over_http(http)
    carry_out(rows, open_storage(settings.storage), 1)
    (run,) = _runs(http, made)
    answer = http.get(f"/v1/runs/{run['id']}/model")
    assert answer.headers["content-disposition"] == f'attachment; filename="{run["id"]}.safetensors"'
    simulation = _played(3)
    assert {name: value.tolist() for name, value in load(answer.content).items()} == {
        name: value.tolist() for name, value in simulation.model().items()
    }


def test_the_best_model_is_that_of_the_best_round(
    http: httpx.Client, browser: httpx.Client, rows: Database, settings: Settings
) -> None:
    made = submit_over_http(http, RISING)
    carry_out(rows, open_storage(settings.storage), 1)
    (run,) = _runs(http, made)
    simulation = Simulation(ExperimentSpec.model_validate(RISING), 0)
    first = simulation.advance()
    assert run["best_model"] == {
        "metric": "suboptimality",
        "round": 1,
        "value": first.extra["suboptimality"],
    }
    answer = http.get(f"/v1/runs/{run['id']}/model", params={"which": "best"})
    assert answer.headers["content-disposition"] == f'attachment; filename="{run["id"]}-best.safetensors"'
    expected = {name: value.tolist() for name, value in simulation.model().items()}
    assert {name: value.tolist() for name, value in load(answer.content).items()} == expected
    final = http.get(f"/v1/runs/{run['id']}/model", params={"which": "final"})
    assert final.content == http.get(f"/v1/runs/{run['id']}/model").content != answer.content
    assert f"/v1/runs/{run['id']}/model?which=best" in browser.get(f"/runs/{run['id']}").text


def test_a_file_that_a_store_does_not_give_out_whole_is_asked_for_later(
    settings: Settings, rows: Database, admin_key: str, s3: S3
) -> None:
    bucket = s3.bucket()
    with calling(
        application(settings.model_copy(update={"storage_url": f"s3://{bucket}"})), admin_key
    ) as http:
        submit_over_http(http)
        held = claim(rows)
        s3.client.put_object(Bucket=bucket, Key=f"{held.run_id}/model.safetensors", Body=b"the parameters")
        finish(rows, held)
        url = f"/v1/runs/{held.run_id}/model"
        assert http.get(url).content == b"the parameters"
        for fault in (Fault.CUT, Fault.BUSY):
            s3.fail(fault)
            answer = http.get(url)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")


def test_a_final_model_that_is_the_best_is_stored_once(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    made, storage = submit_over_http(http), open_storage(settings.storage)
    carry_out(rows, storage, 1)
    (run,) = _runs(http, made)
    assert run["best_model"]["round"] == run["rounds_done"]
    best, final = (
        http.get(f"/v1/runs/{run['id']}/model", params={"which": which}) for which in ("best", "final")
    )
    assert best.content == final.content
    assert len([key for key in storage.keys(run["id"]) if "model" in key]) == 1


def test_a_run_without_a_best_model_says_so(http: httpx.Client, rows: Database, settings: Settings) -> None:
    made = submit_over_http(http, {**TINY, "evaluation": {"best_model": "none"}})
    carry_out(rows, open_storage(settings.storage), 1)
    (run,) = _runs(http, made)
    assert (run["has_model"], run["best_model"]) == (True, None)
    answer = http.get(f"/v1/runs/{run['id']}/model", params={"which": "best"})
    assert (answer.status_code, "has no best model" in answer.json()["detail"]) == (404, True)


def test_a_run_goes_on_from_the_checkpoint_that_was_fetched(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    made = submit_over_http(http)
    storage = open_storage(settings.storage)
    held = commit(rows, claim(rows), [report(1), report(2)])
    assert held.checkpoint is not None
    storage.put(held.checkpoint, _played(2).checkpoint())
    (run,) = _runs(http, made)
    resumed = _played(0)
    resumed.restore(http.get(f"/v1/runs/{run['id']}/checkpoint").content)
    assert resumed.round == 2
    assert resumed.advance().extra == _played(2).advance().extra


@pytest.mark.parametrize("file", ["model", "checkpoint"])
def test_a_file_that_is_not_there_yet_is_not_found(http: httpx.Client, file: str) -> None:
    (run,) = _runs(http, submit_over_http(http))
    answer = http.get(f"/v1/runs/{run['id']}/{file}")
    assert answer.status_code == 404
    assert run["id"] in answer.json()["detail"]


def test_a_file_that_the_storage_does_not_give_is_worth_another_try(
    http: httpx.Client, rows: Database, settings: Settings
) -> None:
    (run,) = _runs(http, submit_over_http(http))
    held = commit(rows, claim(rows), [report(1)])
    assert held.checkpoint is not None
    open_storage(settings.storage).put(f"{held.checkpoint}/a folder", b"where a file should be")
    answer = http.get(f"/v1/runs/{run['id']}/checkpoint")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
    assert "storage" in answer.json()["detail"]


def test_a_file_that_somebody_removed_is_not_found(http: httpx.Client, rows: Database) -> None:
    submit_over_http(http)
    (held,) = end_runs(rows, lambda _: [report(1)], 1)
    for file in ("model", "checkpoint"):
        answer = http.get(f"/v1/runs/{held.run_id}/{file}")
        assert answer.status_code == 404
        assert "may have been removed" in answer.json()["detail"]


@pytest.mark.parametrize("which", ["final", "best"])
def test_a_model_that_was_cut_or_altered_is_not_given_out(
    http: httpx.Client, rows: Database, settings: Settings, which: str
) -> None:
    submit_over_http(http)
    storage = open_storage(settings.storage)
    keys = finish_with_models(rows, storage, claim(rows))
    key, url = keys[which == "best"], f"/v1/runs/{keys[0].partition('/')[0]}/model?which={which}"
    content = read(storage, key)
    assert http.get(url).content == content
    for damage in (b"", content[:100], content[:-1], content + b"x"):
        storage.put(key, damage)
        answer = http.get(url)
        assert answer.status_code == 404
        assert f"{key} in the storage is damaged" in answer.json()["detail"]
    storage.put(key, content[:-1] + b"x")
    assert len(http.get(url).content) < len(content)


@pytest.mark.parametrize("path", ["", "/metrics", "/model", "/checkpoint"])
def test_a_run_that_is_not_there_is_not_found(http: httpx.Client, path: str) -> None:
    assert http.get(f"/v1/runs/run_0{path}").status_code == 404


def test_an_experiment_that_is_not_there_has_no_runs(http: httpx.Client) -> None:
    assert http.get("/v1/experiments/exp_0/runs").status_code == 404


def _played(rounds: int) -> Simulation:
    simulation = Simulation(ExperimentSpec.model_validate(TINY), seed=0)
    for _ in range(rounds):
        simulation.advance()
    return simulation


# Logs and resource use of runs over HTTP.

FAILED = LoggedEvent(
    START,
    LogLevel.ERROR,
    "it failed",
    {"fence": 1, "logger": "any", "exception": "Traceback\nValueError: no"},
)


@pytest.fixture
def held(http: httpx.Client, rows: Database) -> Claim:
    """A run with three lines and three samples."""
    submit_over_http(http)
    held = claim(rows)
    note(rows, held, [line(1), line(2, LogLevel.WARNING), FAILED], [sample(n) for n in (1, 2, 3)])
    return held


def test_lines_are_polled_after_a_number(http: httpx.Client, rows: Database, held: Claim) -> None:
    place = f"/v1/runs/{held.run_id}/logs"
    first = http.get(place, params={"limit": 2}).json()
    assert (first["run_id"], first["status"], first["next"]) == (held.run_id, "running", 2)
    assert first["items"][0] == {
        "number": 1,
        "time": "2026-11-23T12:00:01Z",
        "level": "info",
        "worker": held.worker,
        "event": "event 1",
        "fields": {"number": 1},
    }
    link = http.get(place, params={"limit": 2}).links["next"]["url"]
    rest = http.get(link).json()
    assert ([item["event"] for item in rest["items"]], rest["next"]) == (["it failed"], 3)
    assert http.get(place, params={"cursor": 3}).json()["items"] == []
    note(rows, held, [line(4)])
    write(rows, runs.release, held)
    new = http.get(place, params={"cursor": 3}).json()
    assert ([item["event"] for item in new["items"]], new["status"]) == (["event 4"], "queued")


def test_lines_of_a_level_and_above_are_read(http: httpx.Client, held: Claim) -> None:
    place = f"/v1/runs/{held.run_id}/logs"
    found = http.get(place, params={"level": "warning", "limit": 1})
    assert [item["event"] for item in found.json()["items"]] == ["event 2"]
    (last,) = http.get(found.links["next"]["url"]).json()["items"]
    assert last["event"] == "it failed"
    refused = http.get(place, params={"level": "loud"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?level")


def test_a_log_is_a_text_file(http: httpx.Client, held: Claim) -> None:
    answer = http.get(f"/v1/runs/{held.run_id}/logs.txt")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{held.run_id}.log"'
    assert answer.text == (
        "2026-11-23T12:00:01.000Z worker-1 info event 1 number=1\n"
        "2026-11-23T12:00:02.000Z worker-1 warning event 2 number=2\n"
        "2026-11-23T12:00:00.000Z worker-1 error it failed fence=1\n"
        "Traceback\nValueError: no\n"
    )
    errors = http.get(f"/v1/runs/{held.run_id}/logs.txt", params={"level": "error"}).text
    assert errors.count("\n") == 3


def test_samples_are_polled_after_a_number(http: httpx.Client, rows: Database, held: Claim) -> None:
    place = f"/v1/runs/{held.run_id}/resources"
    first = http.get(place, params={"limit": 2})
    assert first.json()["items"][0] == {
        "number": 1,
        "time": "2026-11-23T12:00:01Z",
        "seconds": 1.0,
        "worker": held.worker,
        "cpu_cores": 1.0,
        "memory_bytes": 100,
        "gpu_utilisation": None,
        "gpu_memory_bytes": None,
    }
    rest = http.get(first.links["next"]["url"]).json()
    assert ([item["number"] for item in rest["items"]], rest["next"]) == ([3], 3)
    end_run(rows, held)
    none = http.get(place, params={"cursor": 3}).json()
    assert (none["items"], none["next"], none["status"]) == ([], 3, "succeeded")


@pytest.mark.parametrize("part", ["logs", "logs.txt", "resources"])
def test_logs_and_samples_belong_to_those_who_may_read_the_run(
    app: FastAPI, settings: Settings, http: httpx.Client, held: Claim, part: str
) -> None:
    place = f"/v1/runs/{held.run_id}/{part}"
    assert http.get(f"/v1/runs/run_9/{part}").status_code == 404
    with calling(app, key_for(settings.database, "ann", Scope.SUBMIT)) as ann:
        assert ann.get(place).status_code == 404
        shared = {"read": ["ann"]}
        assert http.patch(f"/v1/experiments/{held.experiment_id}/access", json=shared).status_code == 200
        assert ann.get(place).status_code == 200
