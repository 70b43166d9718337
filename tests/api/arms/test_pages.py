"""Pages of arms: rows and matches of the key's own experiments."""

from statistics import stdev

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.platform.store import Database
from fedcore.settings import Settings
from tests.api.conftest import browsing
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS
from tests.support.access import key_for


def test_rows_have_each_run_and_match_the_conditions(
    browser: httpx.Client, http: httpx.Client, rows: Database, app: FastAPI, settings: Settings
) -> None:
    id = submit_over_http(http, TWO_ARMS)["id"]
    end_runs(rows, lambda held: [report(1, train_loss=1.0 + held.seed), report(2, train_loss=0.5)], 3)
    found = browser.get("/arms/rows", params={"experiment": id}).json()
    assert found["experiments"] == {id: "two arms"}
    assert found["arms"]["runs"] == [3, 3]
    assert found["arms"]["status"] == ["succeeded", "queued"]
    assert found["settings"] == {"local.lr": [0.1, 0.05]}
    assert found["shared"]["algorithm.kind"] == "fedavg"
    assert found["runs"]["seed"] == [0, 1, 2, 0, 1, 2]
    assert found["figures"]["train_loss.best"] == [0.5, 0.5, 0.5, None, None, None]
    estimates = found["estimates"]["train_loss.best"]
    assert estimates == {"mean": [0.5, None], "std": [0, None], "low": [0.5, None], "high": [0.5, None]}
    assert (found["telling"], found["importance"]["train_loss.best"]) == (
        ["local.lr"],
        [{"path": "local.lr", "share": None, "among": None}],
    )
    # What no run has is left out.
    assert "test_accuracy.best" not in found["figures"]
    assert browser.get("/arms/matching", params={"filter": "local.lr < 0.1"}).json() == {id: [1]}
    refused = browser.get("/arms/matching", params={"filter": "local.lr <"}, headers={"Accept": "*/*"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?filter")
    with browsing(app, key_for(settings.database, "ann", Scope.READ)) as ann:
        nothing = ann.get("/arms/rows").json()
        assert (nothing["arms"]["name"], nothing["runs"]["id"], nothing["settings"]) == ([], [], {})
        assert ann.get("/arms/matching", params={"filter": "local.lr < 0.1"}).json() == {}
        assert ann.get("/arms/rows", params={"experiment": id}).status_code == 404


def test_settings_of_several_experiments_are_columns_where_they_differ(
    browser: httpx.Client, http: httpx.Client
) -> None:
    prox = {"name": "prox", "algorithm": {"kind": "fedprox", "mu": 0.1}, "rounds": 4}
    first, second = submit_over_http(http, TWO_ARMS)["id"], submit_over_http(http, {**TINY, **prox})["id"]
    found = browser.get("/arms/rows").json()
    assert list(found["experiments"]) == [second, first]
    assert found["arms"]["experiment"] == [0, 1, 1]
    assert found["settings"]["local.lr"][1:] == [0.1, 0.05]
    assert found["settings"]["algorithm.mu"] == [0.1, None, None]
    assert found["settings"]["rounds"] == [4, 3, 3]
    assert not set(found["settings"]) & set(found["shared"])
    alone = browser.get("/arms/rows", params={"filter": "local.lr = 0.05"}).json()
    assert (alone["arms"]["arm"], alone["shared"]["local.lr"], alone["settings"]) == ([1], 0.05, {})
    assert alone["runs"]["seed"] == [0, 1, 2]


def test_means_of_groups_are_over_all_their_runs(
    browser: httpx.Client, http: httpx.Client, rows: Database, app: FastAPI, settings: Settings
) -> None:
    id = submit_over_http(http, TWO_ARMS)["id"]
    end_runs(rows, lambda held: [report(1, train_loss=1.0 + held.seed + 10 * held.arm)], 6)
    wanted = {
        "figures": ["train_loss.best", "test_accuracy.best"],
        "groups": [{id: [0, 1]}, {id: [1]}, {id: [7], "exp_none": [0]}],
    }
    both, one, none = browser.post("/arms/means", json=wanted).json()
    assert both == {
        "train_loss.best": {"mean": 7, "std": pytest.approx(stdev([1, 2, 3, 11, 12, 13]))},
        "test_accuracy.best": None,
    }
    assert one["train_loss.best"] == {"mean": 12, "std": 1}
    assert none == {"train_loss.best": None, "test_accuracy.best": None}
    sent = browser.post("/arms/means", json={"figures": ["megabytes_sent", "seconds"], "groups": [{id: [0]}]})
    found = browser.get("/arms/rows").json()["estimates"]
    assert [figure["mean"] for figure in sent.json()[0].values()] == [
        found["megabytes_sent"]["mean"][0],
        found["seconds"]["mean"][0],
    ]
    refused = browser.post("/arms/means", json={"figures": ["seconds"], "groups": [{id: [10**30]}]})
    assert refused.status_code == 422
    with browsing(app, key_for(settings.database, "ann", Scope.READ)) as ann:
        assert ann.post("/arms/means", json=wanted).json() == [none] * 3


def test_equal_values_have_no_deviation_by_rounding(
    browser: httpx.Client, http: httpx.Client, rows: Database
) -> None:
    id = submit_over_http(http, TWO_ARMS)["id"]
    end_runs(rows, lambda held: [report(1, train_loss=0.1 if held.arm else 1e300)], 6)
    groups = [{id: [0]}, {id: [1]}]
    means = browser.post("/arms/means", json={"figures": ["train_loss.best"], "groups": groups}).json()
    assert [found["train_loss.best"] for found in means] == [
        {"mean": 1e300, "std": 0},
        {"mean": 0.1, "std": 0},
    ]
