"""Results of another FedQ: taken as they are, once, and refused where they are not whole."""

import gzip
import json
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime, timedelta
from math import nan, nextafter
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from fedcore.platform.access import Scope
from fedcore.platform.storage import open_storage, read
from fedcore.platform.store import Database, audit, keys
from fedcore.platform.store.quotas import usage
from fedcore.platform.store.tables import RunRecord
from fedcore.settings import Settings
from fedcore.spec.digest import results_sha256
from fedq import schemas
from fedq.client.exports import files
from tests.api.results.test_claims import PRESET, at_rest
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.runs import carry_out
from tests.builders.specifications import TWO_ARMS, Document
from tests.support.access import bearer, key_for
from workers.retention import RESULTS, remove_expired

LONG: Document = TWO_ARMS | {"seeds": [3, 1], "rounds": 205, "evaluation": {"record_parameters": True}}
"""Longer than a block of its curves; seeds in an order of their own."""


@pytest.fixture
def exported(http: httpx.Client, rows: Database, tmp_path: Path) -> Document:
    id = submit_over_http(http, LONG)["id"]

    def history(held: Any) -> Any:
        values = [nextafter(1 / (round + held.seed), 1) for round in range(1, 206)]
        return [
            report(
                round,
                train_loss=None,
                extra={
                    "objective": value,
                    "x": [value, -value],
                    "confusion_matrix": [[value, nan], [0.0, 1.0]],
                },
            )
            for round, value in enumerate(values, 1)
        ]

    end_runs(rows, history, 4)
    return _exported(http, id, tmp_path)


def test_import_gives_the_same_results_and_rows_to_the_last_bit(
    database_url: str, http: httpx.Client, exported: Document
) -> None:
    answer = http.post("/v1/imports", json=exported)
    assert answer.status_code == 201, answer.text
    made, id = answer.json(), exported["experiment"]["id"]
    assert made["id"] != id
    assert (made["status"], made["name"], made["provenance"]["imported"]["experiment_id"]) == (
        "succeeded",
        "two arms",
        id,
    )
    assert answer.headers["location"] == f"/v1/experiments/{made['id']}"
    for end in ("results", "theory"):
        before, after = (http.get(f"/v1/experiments/{each}/{end}").json() for each in (id, made["id"]))
        own = {"experiment_id", "provenance"}
        assert {name: after[name] for name in after.keys() - own} == {
            name: before[name] for name in before.keys() - own
        }
    runs = [http.get(f"/v1/experiments/{each}/runs").json()["items"] for each in (id, made["id"])]
    for there, here in zip(*runs, strict=True):
        assert (here["arm"], here["seed"], here["has_model"], here["has_checkpoint"]) == (
            there["arm"],
            there["seed"],
            False,
            False,
        )
        pages = [http.get(f"/v1/runs/{run['id']}/metrics").json()["items"] for run in (there, here)]
        assert pages[0] == pages[1]
    assert made["id"] in {
        item["id"] for item in http.get("/v1/experiments", params={"tag": "small"}).json()["items"]
    }


def test_warnings_of_an_import_follow_from_its_rows_and_not_from_what_it_says(
    http: httpx.Client, rows: Database, tmp_path: Path
) -> None:
    id = submit_over_http(http, TWO_ARMS | {"seeds": [0]})["id"]
    values = {0: (1.0, 2.0, 3.0), 1: (3.0, 2.0, 1.0)}
    end_runs(
        rows,
        lambda held: [report(round, train_loss=loss) for round, loss in enumerate(values[held.arm], 1)],
        2,
    )
    told = "1 of 2 runs ended worse than it began"
    assert http.get(f"/v1/experiments/{id}").json()["warning"] == told

    def exchange(file: Document) -> None:
        for run, warning in zip(file["runs"], (None, {"kind": "at_chance", "detail": 7}), strict=True):
            run["provenance"]["warning"] = warning

    made = http.post("/v1/imports", json=_changed(_exported(http, id, tmp_path), exchange)).json()
    assert made["warning"] == told
    first, second = http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]
    assert first["warning"].startswith("ended worse than it began")
    assert second["warning"] is None


def test_the_same_file_twice_is_the_same_experiment_of_each_owner(
    database_url: str, http: httpx.Client, rows: Database, exported: Document, settings: Settings
) -> None:
    first, again = (http.post("/v1/imports", json=exported) for _ in range(2))
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    other = http.post(
        "/v1/imports", json=exported, headers=bearer(key_for(settings.database, "bob", Scope.SUBMIT))
    )
    assert (other.status_code, other.json()["owner"]) == (201, "bob")
    assert other.json()["id"] != first.json()["id"]
    with rows.reading() as session:
        noted = [
            (entry.action, entry.target, entry.owner)
            for entry in audit.page(session).items
            if entry.action == "POST /v1/imports"
        ]
    assert ("POST /v1/imports", first.json()["id"], "local") in noted
    assert ("POST /v1/imports", other.json()["id"], "bob") in noted


def test_imported_experiment_never_goes_on_here_and_costs_its_key_nothing(
    http: httpx.Client, rows: Database, exported: Document
) -> None:
    before = _spent(http, rows)
    file = _changed(
        exported, lambda file: file["runs"][0].update(status="failed", error="its machine was lost")
    )
    made = http.post("/v1/imports", json=file).json()
    assert (made["status"], made["error"]) == ("failed", "its machine was lost")
    for action, body in (("retry", None), ("extend", {"rounds": 300}), ("resume", None), ("pause", None)):
        answer = http.post(f"/v1/experiments/{made['id']}/{action}", json=body)
        assert answer.status_code == 409, action
    assert "was imported" in http.post(f"/v1/experiments/{made['id']}/retry").json()["detail"]
    assert _spent(http, rows) == before
    assert http.delete(f"/v1/experiments/{made['id']}").status_code == 204
    assert http.post("/v1/imports", json=file).status_code == 201


def test_claims_are_told_of_the_preset_that_it_followed_elsewhere(
    http: httpx.Client, rows: Database, tmp_path: Path
) -> None:
    id = submit_over_http(http, {"preset": PRESET, "overrides": {"rounds": 10}})["id"]
    end_runs(rows, at_rest, 6)
    there = http.get(f"/v1/experiments/{id}/claims").json()
    file = _exported(http, id, tmp_path)
    # Imported, exported and imported once more.
    for _ in range(2):
        id = http.post("/v1/imports", json=file).json()["id"]
        assert http.get(f"/v1/experiments/{id}/claims").json() == there | {"experiment_id": id}
        file = _exported(http, id, tmp_path)
    for preset, status in ((7, 404), ("gone", 404), ([PRESET], 404)):
        other = file | {"experiment": file["experiment"] | {"provenance": {"preset": preset}}}
        answer = http.post("/v1/imports", json=other | {"digest": results_sha256(other)})
        assert answer.status_code == 201, answer.text
        made = answer.json()["id"]
        assert http.get(f"/v1/experiments/{made}/claims").status_code == status


def test_repetition_of_an_import_is_carried_out_here_and_goes_on_like_any_other(
    http: httpx.Client, exported: Document
) -> None:
    imported = http.post("/v1/imports", json=exported).json()["id"]
    again = http.post(f"/v1/experiments/{imported}/reproduce").json()
    assert again["provenance"]["reproduces"] == imported
    assert "imported" not in again["provenance"]
    http.post(f"/v1/experiments/{again['id']}/cancel")
    assert http.post(f"/v1/experiments/{again['id']}/retry").json()["status"] == "queued"


def test_imported_experiment_can_be_repeated_and_the_repetition_goes_on_as_any_other(
    http: httpx.Client, rows: Database, settings: Settings, tmp_path: Path
) -> None:
    original, storage = (
        submit_over_http(http, {"preset": PRESET, "overrides": {"rounds": 3}})["id"],
        open_storage(settings.storage),
    )
    carry_out(rows, storage, 6)
    made = http.post("/v1/imports", json=_exported(http, original, tmp_path)).json()["id"]
    again = http.post(f"/v1/experiments/{made}/reproduce").json()
    carry_out(rows, storage, 6)
    found = http.get(f"/v1/experiments/{again['id']}/reproduction").json()
    assert (found["reproduces"], found["outcome"], found["runs"], found["unmatched"]) == (
        made,
        "identical",
        6,
        0,
    )
    assert http.get(f"/v1/experiments/{again['id']}/claims").json()["preset"] == PRESET
    assert http.post(f"/v1/experiments/{made}/extend", json={"seeds": [9]}).status_code == 409
    extended = http.post(f"/v1/experiments/{again['id']}/extend", json={"seeds": [9]})
    assert (extended.status_code, "imported" in extended.json()["provenance"]) == (200, False)


CHANGES: list[tuple[str, Callable[[Document], object]]] = [
    ("/digest", lambda file: file.update(digest="0" * 64)),
    ("/version", lambda file: file.update(version=2)),
    ("/runs", lambda file: file["runs"].pop()),
    ("/runs/1", lambda file: file["runs"][1].update(seed=3)),
    ("/runs/0/rows", lambda file: file["runs"][0]["rows"]["seconds"].pop()),
    ("/runs/0/rows", lambda file: _shorten(file["runs"][0]["rows"])),
    ("/runs/0/diverged_round", lambda file: file["runs"][0].update(diverged_round=7)),
    ("/runs/0/status", lambda file: file["runs"][0].update(status="running")),
    ("/runs/0/rows/bytes_up/3", lambda file: file["runs"][0]["rows"]["bytes_up"].__setitem__(3, 2**63)),
    ("/runs/0/finished_at", lambda file: file["runs"][0].update(finished_at="0001-01-01T00:00:00+14:00")),
    (
        "/runs/0/provenance/model_sha256",
        lambda file: file["runs"][0]["provenance"].update(model_sha256=7),
    ),
    ("/runs", lambda file: file["runs"][1].update(id=file["runs"][0]["id"])),
    ("/runs/1/rows/test_accuracy/204", lambda file: _set(file, "test_accuracy", 204, 17.0)),
    ("/runs/1/rows/test_accuracy/0", lambda file: _set(file, "test_accuracy", 0, -1e-6)),
    ("/runs/1/rows/extra/gradient_norm/3", lambda file: _add(file, "gradient_norm", 3, -2.0)),
    ("/runs/1/rows/extra/idle_share/3", lambda file: _add(file, "idle_share", 3, 1.5)),
    (
        "/runs/1/rows/extra/min_norm_weights/3",
        lambda file: _add(file, "min_norm_weights", 3, [0.5, -0.5, None]),
    ),
    (
        "/runs/1/rows/extra/confusion_matrix/3",
        lambda file: file["runs"][1]["rows"]["extra"]["confusion_matrix"].__setitem__(3, [[1.0, -1.0]]),
    ),
    ("/runs/1/rows/extra/test_accuracy", lambda file: _add(file, "test_accuracy", 3, 0.5)),
    ("/runs/1/rows/extra/simulated_seconds", lambda file: _add(file, "simulated_seconds", 3, -1.0)),
    (
        "/runs/1/rows/extra/simulated_seconds",
        lambda file: file["runs"][1]["rows"]["extra"].update(simulated_seconds=[*range(204), 3]),
    ),
    ("/runs/0/started_at", lambda file: file["runs"][0].update(started_at="2999-01-01T00:00:00Z")),
    ("/runs/0/finished_at", lambda file: file["runs"][0].update(finished_at="2999-01-01T00:00:00Z")),
    ("/runs/0/finished_at", lambda file: file["runs"][0].update(finished_at="2001-01-01T00:00:00Z")),
    ("/runs/1/rows/committed_at/7", lambda file: _set(file, "committed_at", 7, "2999-01-01T00:00:00Z")),
    ("/runs/1/rows/committed_at/7", lambda file: _set(file, "committed_at", 7, "2001-01-01T00:00:00Z")),
    ("/runs/1/rows/committed_at/0", lambda file: _set(file, "committed_at", 0, "2001-01-01T00:00:00Z")),
    ("/exported_at", lambda file: file.update(exported_at="2999-01-01T00:00:00Z")),
    ("/exported_at", lambda file: file.update(exported_at="2001-01-01T00:00:00Z")),
    ("/experiment/created_at", lambda file: file["experiment"].update(created_at="2999-01-01T00:00:00Z")),
    (
        "/experiment/specification/rounds",
        lambda file: file["experiment"]["specification"].update(rounds=0),
    ),
]


def test_incomplete_import_is_refused_with_its_place(http: httpx.Client, exported: Document) -> None:
    for pointer, change in CHANGES:
        answer = http.post("/v1/imports", json=_changed(exported, change, keep_digest=pointer == "/digest"))
        assert answer.status_code == 422, (pointer, answer.text)
        assert pointer in {flaw["pointer"] for flaw in answer.json()["errors"]}
        assert len(http.get("/v1/experiments").json()["items"]) == 1


def test_clocks_that_differ_and_sums_that_are_rounded_are_no_reason_to_refuse_it(
    http: httpx.Client, exported: Document
) -> None:
    def change(file: Document) -> None:
        moment = datetime.fromisoformat(file["exported_at"])
        hours = timedelta(hours=23)
        file["runs"][0].update(finished_at=(moment + hours).isoformat())
        # The clock was set back while the run was under way.
        _set(file, "committed_at", 7, (moment - hours).isoformat())
        _set(file, "test_accuracy", 7, nextafter(1, 2))
        _add(file, "personal_accuracy", 3, -1e-17)
        _add(file, "measure_of_a_package", 3, -17.0)
        file["runs"][1]["rows"]["extra"]["simulated_seconds"] = [None, 0.0, 0.0, *range(202)]

    assert http.post("/v1/imports", json=_changed(exported, change)).status_code == 201


def test_an_experiment_from_the_archive_has_the_same_results_as_before(
    http: httpx.Client, rows: Database, exported: Document, tmp_path: Path
) -> None:
    id = exported["experiment"]["id"]
    before = http.get(f"/v1/experiments/{id}/results").json()
    archive, storage = (open_storage(str(tmp_path / name)) for name in ("archive", "storage"))
    with rows.reading() as session:
        stored = session.execute(select(RunRecord.model, RunRecord.checkpoint)).all()
    for key in {key for pair in stored for key in pair if key is not None}:
        storage.put(key, b"content")
    remove_expired(rows, storage, archive, -1.0, Event())
    assert http.get(f"/v1/experiments/{id}").status_code == 404
    answer = http.post("/v1/imports", json=json.loads(gzip.decompress(read(archive, f"{id}/{RESULTS}"))))
    assert answer.status_code == 201, answer.text
    after = http.get(f"/v1/experiments/{answer.json()['id']}/results").json()
    own = {"experiment_id", "provenance"}
    assert {name: after[name] for name in after.keys() - own} == {
        name: before[name] for name in before.keys() - own
    }


def _exported(http: httpx.Client, id: str, folder: Path) -> Document:
    """As the client writes it."""
    file = files.ArchiveRuns(
        schemas.Experiment(**http.get(f"/v1/experiments/{id}").json()), folder / "file.json.gz", None
    )
    for run in http.get(f"/v1/experiments/{id}/runs").json()["items"]:
        page = http.get(f"/v1/runs/{run['id']}/metrics", params={"limit": 10_000}).json()["items"]
        file.add(schemas.Run(**run), [schemas.RoundRow(**row) for row in page], None)
    file.close()
    return json.loads(files.content_of(folder / "file.json.gz"))


def _changed(file: Document, change: Callable[[Document], object], *, keep_digest: bool = False) -> Document:
    """Another file, whole but for the change."""
    other = deepcopy(file)
    change(other)
    return other if keep_digest else other | {"digest": results_sha256(other)}


def _set(file: Document, column: str, place: int, value: object) -> None:
    file["runs"][1]["rows"][column][place] = value


def _add(file: Document, measure: str, place: int, value: object) -> None:
    """A measure with one value beside the others."""
    values = [None] * 205
    values[place] = value  # type: ignore[call-overload]
    file["runs"][1]["rows"]["extra"][measure] = values


def _shorten(rows: Document) -> None:
    for values in (*(values for name, values in rows.items() if name != "extra"), *rows["extra"].values()):
        values.pop()


def _spent(http: httpx.Client, rows: Database) -> float:
    with rows.reading() as session:
        return usage(session, keys.find(session, http.get("/v1/me").json()["key"]["id"])).compute_seconds
