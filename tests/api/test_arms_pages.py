"""Pages of arms: rows and matches of the key's own experiments."""

import httpx
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.platform.store import Database
from fedcore.settings import Settings
from tests.api.conftest import browsing
from tests.api.histories import TWO_ARMS, submit, write
from tests.platform.store.acts import report
from tests.support.access import key_for


def test_rows_have_each_run_and_match_the_conditions(
    browser: httpx.Client, http: httpx.Client, rows: Database, app: FastAPI, settings: Settings
) -> None:
    id = submit(http, TWO_ARMS)["id"]
    write(rows, lambda held: [report(1, train_loss=1.0 + held.seed), report(2, train_loss=0.5)], 3)
    found = browser.get("/arms/rows", params={"experiment": id}).json()
    assert [arm["settings"]["local.lr"] for arm in found["arms"]] == [0.1, 0.05]
    assert found["experiments"][id]["settings"]["algorithm.kind"] == "fedavg"
    place = 5 + 2 * [metric["name"] for metric in found["metrics"]].index("train_loss")
    assert [seed[place] for seed in found["arms"][0]["seeds"]] == [0.5, 0.5, 0.5]
    assert [seed[1] for seed in found["arms"][1]["seeds"]] == [0, 1, 2]
    assert browser.get("/arms/matching", params={"filter": "local.lr < 0.1"}).json() == [f"{id}:1"]
    refused = browser.get("/arms/matching", params={"filter": "local.lr <"}, headers={"Accept": "*/*"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?filter")
    with browsing(app, key_for(settings.database, "ann", Scope.READ)) as ann:
        assert ann.get("/arms/rows").json()["arms"] == []
        assert ann.get("/arms/matching", params={"filter": "local.lr < 0.1"}).json() == []
        assert ann.get("/arms/rows", params={"experiment": id}).status_code == 404
