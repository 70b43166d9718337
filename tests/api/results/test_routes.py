"""Results as JSON, CSV and Parquet, and the choice among them."""

import json
from collections.abc import Hashable
from io import BytesIO, StringIO
from math import isnan
from typing import Any

import httpx
import pandas as pd
import pytest
from pyarrow import parquet

from fedcore.platform.store import Database
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TWO_ARMS, Document

CSV, PARQUET = "text/csv", "application/vnd.apache.parquet"


@pytest.fixture
def place(http: httpx.Client, rows: Database) -> str:
    """The results of six finished runs."""
    made = submit_over_http(http, TWO_ARMS)
    end_runs(
        rows,
        lambda held: [report(round, train_loss=1 / (round + held.seed + held.arm)) for round in (1, 2, 3)],
        6,
    )
    return f"/v1/experiments/{made['id']}/results"


def _fetch(http: httpx.Client, place: str, media_type: str, table: str) -> pd.DataFrame:
    answer = http.get(place, params={"table": table}, headers={"Accept": media_type})
    assert answer.headers["content-type"].partition(";")[0] == media_type
    return (
        pd.read_csv(StringIO(answer.text))
        if media_type == CSV
        else parquet.read_table(BytesIO(answer.content)).to_pandas()
    )


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize("media_type", [CSV, PARQUET])
def test_the_summary_table_holds_the_figures_of_the_json(
    http: httpx.Client, place: str, media_type: str
) -> None:
    table = _fetch(http, place, media_type, "summary")
    lines = {(line["arm"], line["metric"], line["figure"]): line for line in table.to_dict("records")}
    for arm in http.get(place).json()["arms"]:
        _same(lines[arm["index"], "train_loss", "best"], arm["metrics"]["train_loss"]["best"])
        _same(lines[arm["index"], "megabytes_sent", "total"], arm["megabytes_sent"])
    for arm, one in enumerate(http.get(place).json()["best_arms"]["beside"]):
        line = lines[arm, "train_loss", "final_difference"]
        assert (line["n"], line["verdict"]) == (one["seeds"], one["verdict"])


@pytest.mark.usefixtures("database_url")
@pytest.mark.parametrize("media_type", [CSV, PARQUET])
def test_the_curves_table_holds_the_points_of_the_json(
    http: httpx.Client, place: str, media_type: str
) -> None:
    table = _fetch(http, place, media_type, "curves")
    curve = http.get(place).json()["arms"][1]["curves"]["train_loss"]
    mine = table[(table["arm"] == 1) & (table["metric"] == "train_loss")]
    assert mine["round"].tolist() == curve["rounds"]
    assert mine["mean"].tolist() == pytest.approx(curve["mean"])
    assert mine["megabytes"].tolist() == pytest.approx(curve["megabytes"])


@pytest.mark.parametrize("table", ["summary", "curves"])
def test_a_parquet_file_says_what_it_was_made_from(http: httpx.Client, place: str, table: str) -> None:
    answer = http.get(place, params={"table": table}, headers={"Accept": PARQUET})
    about = json.loads(parquet.read_schema(BytesIO(answer.content)).metadata[b"fedq"])
    experiment = http.get(place.removesuffix("/results")).json()
    assert (about["experiment_id"], about["name"], about["status"]) == (
        experiment["id"],
        "two arms",
        "succeeded",
    )
    assert about["provenance"] == experiment["provenance"] == http.get(place).json()["provenance"]


@pytest.mark.parametrize("media_type", [CSV, PARQUET])
@pytest.mark.parametrize("table", ["summary", "curves"])
def test_a_table_without_lines_has_its_columns(http: httpx.Client, media_type: str, table: str) -> None:
    made = submit_over_http(http)
    empty = _fetch(http, f"/v1/experiments/{made['id']}/results", media_type, table)
    assert list(empty.columns[:3]) == ["arm", "name", "metric"]
    assert empty.empty


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "application/json"),
        ("text/html, application/*;q=0.8", "application/json"),
        ("text/*", CSV),
        ("application/json;q=0.1, text/csv;q=0.9", CSV),
        ("application/json;q=0, */*;q=0.5", "application/json"),
        ("APPLICATION/VND.APACHE.PARQUET", PARQUET),
    ],
)
def test_the_best_of_the_accepted_media_types_is_sent(
    http: httpx.Client, place: str, accept: str, media_type: str
) -> None:
    assert http.get(place, headers={"Accept": accept}).headers["content-type"].partition(";")[0] == media_type


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", "application/json;q=x", "image/png, text/html"]
)
def test_a_media_type_that_there_is_not_is_refused(http: httpx.Client, place: str, accept: str) -> None:
    answer = http.get(place, headers={"Accept": accept})
    assert answer.status_code == 406
    assert answer.headers["content-type"] == "application/problem+json"
    assert accept in answer.json()["detail"]


def test_curves_are_read_of_some_rounds_and_figures_of_all(http: httpx.Client, place: str) -> None:
    whole, part = (http.get(place, params=params).json() for params in ({}, {"from_round": 2, "to_round": 2}))
    for all_of_it, some in zip(whole["arms"], part["arms"], strict=True):
        assert some.pop("curves")["train_loss"]["mean"] == all_of_it.pop("curves")["train_loss"]["mean"][1:2]
        assert some == all_of_it
    compared = http.get("/v1/compare", params={"arm": place.split("/")[3], "from_round": 3}).json()
    assert [arm["curves"]["train_loss"]["rounds"] for arm in compared["arms"]] == [[3], [3]]
    refused = http.get(place, params={"from_round": 3, "to_round": 2})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?to_round")


def test_changes_since_a_position_complete_the_curves(http: httpx.Client, rows: Database) -> None:
    place = f"/v1/experiments/{submit_over_http(http, TWO_ARMS)['id']}/results"
    held: dict[int, Document] = {}
    position = None
    # Seed by seed, so that a mean over seeds changes from its first round on.
    for count in (1, 2, 0, 3):
        end_runs(rows, lambda run: [report(at, train_loss=1 / (at + run.seed)) for at in (1, 2, 3)], count)
        grown = http.get(place, params={} if position is None else {"since": position}).json()
        for arm in grown["arms"]:
            known = held.setdefault(arm["index"], {"rounds": [], "mean": [], "n": []})
            kept = [at for at, round in enumerate(known["rounds"]) if round < arm["curves_from"]]
            added = arm["curves"].get("train_loss") or {name: [] for name in known}
            for name, values in known.items():
                values[:] = [values[at] for at in kept] + added[name]
        whole = http.get(place).json()
        for arm, new in zip(whole["arms"], grown["arms"], strict=True):
            curve = arm.pop("curves").get("train_loss", {"rounds": [], "mean": [], "n": []})
            assert held[arm["index"]] == {name: curve[name] for name in held[arm["index"]]}
            assert arm.pop("curves_from") == 1
            assert {name: new[name] for name in arm} == arm
        if not count:
            assert not any(curve["rounds"] for arm in grown["arms"] for curve in arm["curves"].values())
        position = grown["position"]
    refused = http.get(place, params={"since": "nowhere"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?since")


def test_responses_are_compressed_unless_their_type_is(http: httpx.Client, place: str) -> None:
    answers = {kind: http.get(place, headers={"Accept": kind}) for kind in ("application/json", PARQUET)}
    assert answers["application/json"].headers["content-encoding"] == "gzip"
    assert "content-encoding" not in answers[PARQUET].headers


def test_results_of_what_is_not_there_are_not_found(http: httpx.Client) -> None:
    assert http.get("/v1/experiments/exp_0/results").status_code == 404


def _same(line: dict[Hashable, Any], estimate: Document) -> None:
    for name, value in estimate.items():
        assert isnan(line[name]) if value is None else line[name] == pytest.approx(value)
