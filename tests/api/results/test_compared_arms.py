"""`GET /v1/compare`: arms of several experiments side by side."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.results import compared_arms
from fedcore.platform.access import Scope
from fedcore.platform.store import Database
from fedcore.platform.store.leases import Claim
from fedcore.settings import Settings
from fedcore.spec import stored_arms
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, Document
from tests.support.access import key_for
from tests.support.asgi import calling

PLACE = "/v1/compare"
OTHER: Document = {**TINY, "name": "another", "seeds": [0, 1, 2], "algorithm": {"kind": "scaffold"}}


def _history(held: Claim) -> list[Any]:
    return [report(round, train_loss=1 / (round + held.seed * (1 + held.arm))) for round in (1, 2, 3)]


def _made(http: httpx.Client, rows: Database, document: Document, runs: int) -> str:
    id: str = submit_over_http(http, document)["id"]
    end_runs(rows, _history, runs)
    return id


def test_a_whole_experiment_is_compared_as_in_its_results(http: httpx.Client, rows: Database) -> None:
    id = _made(http, rows, TWO_ARMS, 6)
    found, results = (
        http.get(PLACE, params={"arm": id}).json(),
        http.get(f"/v1/experiments/{id}/results").json(),
    )
    for arm in results["arms"]:
        # Arms of several experiments have nothing in common, so all settings stand with each.
        arm["parameters"] |= results["parameters"]
    assert found["arms"] == results["arms"]
    assert [(member["arm"], member["paired"]) for member in found["members"]] == [(0, True), (1, True)]
    assert found["pairing"] == "All arms are compared, seed by seed."
    assert found["best_arms"] == results["best_arms"]


def test_arms_of_several_are_named_with_their_experiments_and_paired_where_conditions_agree(
    http: httpx.Client, rows: Database
) -> None:
    two, other = _made(http, rows, TWO_ARMS, 6), _made(http, rows, OTHER, 3)
    found = http.get(
        PLACE, params={"arm": [f"{two}:lr=0.05", f"{two}:0", other, f"{two}:1"], "baseline": 1}
    ).json()
    assert [arm["name"] for arm in found["arms"]] == [
        "two arms: lr=0.05",
        "two arms: lr=0.1",
        "another: scaffold",
    ]
    assert [arm["index"] for arm in found["arms"]] == [0, 1, 2]
    assert [(member["experiment_id"], member["arm"], member["paired"]) for member in found["members"]] == [
        (two, 1, True),
        (two, 0, True),
        (other, 0, True),
    ]
    assert found["best_arms"]["baseline"] == 1
    assert [one["words"] for one in found["best_arms"]["beside"]][1] == "baseline"
    assert found["best_arms"]["beside"][2]["difference"] is not None


def test_the_arms_of_an_experiment_are_expanded_once(
    http: httpx.Client, rows: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them are compared."""
    two, other = _made(http, rows, TWO_ARMS, 6), _made(http, rows, OTHER, 3)
    expanded: list[str] = []

    def expand(document: Document) -> Any:
        expanded.append(document["name"])
        return stored_arms(document)

    monkeypatch.setattr(compared_arms, "stored_arms", expand)
    assert len(http.get(PLACE, params={"arm": [f"{two}:1", two, other]}).json()["arms"]) == 3
    assert sorted(expanded) == ["another", "two arms"]


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": [1, 2, 3]},
        {"participation": {"kind": "uniform", "clients_per_round": 2}},
    ],
    ids=["seeds", "participation"],
)
def test_arms_that_share_no_chance_are_not_paired_and_it_is_said(
    http: httpx.Client, rows: Database, change: Document
) -> None:
    two, other = _made(http, rows, TWO_ARMS, 6), _made(http, rows, OTHER | change, 3)
    found = http.get(PLACE, params={"arm": [two, other]}).json()
    assert [member["paired"] for member in found["members"]] == [True, True, False]
    assert found["pairing"].endswith("and at least 3 seeds: another: scaffold.")
    assert [one["words"] for one in found["best_arms"]["beside"]][2] == "not compared"
    alone = http.get(PLACE, params={"arm": two}).json()["best_arms"]
    assert found["best_arms"]["beside"][:2] == alone["beside"]


def test_arms_with_other_data_are_shown_without_a_verdict(http: httpx.Client, rows: Database) -> None:
    data = {"kind": "quadratic", "generate": {"dim": 2, "clients": 3, "seed": 9}}
    two, other = _made(http, rows, TWO_ARMS, 6), _made(http, rows, OTHER | {"problem": {"dataset": data}}, 3)
    found = http.get(PLACE, params={"arm": [two, other]}).json()
    assert [one["words"] for one in found["best_arms"]["beside"]][2] == "not compared"
    alone = http.get(PLACE, params={"arm": two}).json()["best_arms"]
    assert found["best_arms"]["beside"][:2] == alone["beside"]
    assert found["pairing"].endswith("another: scaffold.")
    assert (
        http.get(PLACE, params={"arm": [two, other], "baseline": 2}).json()["pairing"].startswith("No arms")
    )
    swept = TWO_ARMS | {"sweep": {"problem.dataset": [TWO_ARMS["problem"]["dataset"], data]}}
    results = http.get(f"/v1/experiments/{_made(http, rows, swept, 6)}/results").json()
    assert [one["difference"] for one in results["best_arms"]["beside"]] == [None, None]


def test_experiments_of_one_name_are_told_apart_by_their_ids(http: httpx.Client, rows: Database) -> None:
    first, second = _made(http, rows, OTHER, 3), _made(http, rows, OTHER, 3)
    found = http.get(PLACE, params={"arm": [first, second], "metric": "train_loss", "points": 2}).json()
    assert [arm["name"] for arm in found["arms"]] == [
        f"another ({first}): scaffold",
        f"another ({second}): scaffold",
    ]
    assert found["arms"][0]["curves"]["train_loss"]["rounds"] == [1, 3]
    assert [one["words"] for one in found["best_arms"]["beside"]] == ["too few seeds"] * 2
    assert [one["difference"] for one in found["best_arms"]["beside"]] == [0, 0]


def test_changes_since_a_position_complete_compared_curves(http: httpx.Client, rows: Database) -> None:
    two, other = submit_over_http(http, TWO_ARMS)["id"], submit_over_http(http, OTHER)["id"]
    wanted = {"arm": [two, f"{other}:0"]}
    held: dict[str, Document] = {}
    position = None
    # Seed by seed, of both experiments; then a seed of the first one, whose runs are compared before others.
    for count in (1, 3, 0, 5, 2):
        if count == 2:
            assert http.post(f"/v1/experiments/{two}/extend", json={"seeds": [7]}).status_code == 200
        end_runs(rows, _history, count)
        grown = http.get(PLACE, params=wanted if position is None else wanted | {"since": position}).json()
        whole = http.get(PLACE, params=wanted).json()
        for new, arm in zip(grown["arms"], whole["arms"], strict=True):
            known = held.setdefault(arm["name"], {"rounds": [], "mean": [], "n": []})
            kept = [at for at, round in enumerate(known["rounds"]) if round < new["curves_from"]]
            added = new["curves"].get("train_loss") or {name: [] for name in known}
            for name, values in known.items():
                values[:] = [values[at] for at in kept] + added[name]
            curve = arm["curves"].get("train_loss") or {name: [] for name in known}
            assert known == {name: curve[name] for name in known}
            assert new["metrics"] == arm["metrics"]
        if not count:
            assert not any(curve["rounds"] for arm in grown["arms"] for curve in arm["curves"].values())
        position = grown["position"]
    refused = http.get(PLACE, params=wanted | {"since": "nowhere"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?since")


def test_a_comparison_is_drawn(http: httpx.Client, rows: Database) -> None:
    two, other = _made(http, rows, TWO_ARMS, 6), _made(http, rows, OTHER, 3)
    answer = http.get(f"{PLACE}/figure.svg", params={"arm": [two, other], "metric": "train_loss"})
    assert answer.headers["content-type"].startswith("image/svg+xml")
    for text in ("two arms and another", "two arms: lr=0.1", "another: scaffold"):
        assert f"<!-- {text} -->" in answer.text
    assert http.get(f"{PLACE}/figure.svg", params={"arm": two, "metric": "test_loss"}).status_code == 404
    assert http.get(f"{PLACE}/figure.svg", params={"arm": two, "x": "time"}).status_code == 404


@pytest.mark.parametrize(
    ("asked", "status", "pointer", "words"),
    [
        ({}, 422, "?arm", "required"),
        ({"arm": "exp_none"}, 404, None, "no experiment 'exp_none'"),
        ({"arm": "ID:7"}, 422, "?arm", "by name or index: lr=0.1, lr=0.05; not '7'"),
        ({"arm": "ID:lr=3"}, 422, "?arm", "not 'lr=3'"),
        ({"arm": "ID", "baseline": 2}, 422, "?baseline", "must be less than 2"),
    ],
)
def test_arms_that_cannot_be_compared_are_pointed_at(
    http: httpx.Client, asked: Document, status: int, pointer: str | None, words: str
) -> None:
    id = submit_over_http(http, TWO_ARMS)["id"]
    params = {
        name: value.replace("ID", id) if isinstance(value, str) else value for name, value in asked.items()
    }
    answer = http.get(PLACE, params=params)
    assert answer.status_code == status
    assert words in answer.text.replace(id, "ID").lower() or words in answer.json()["detail"]
    if pointer:
        assert [flaw["pointer"] for flaw in answer.json()["errors"]] == [pointer]


def test_experiments_of_others_cannot_be_compared(
    http: httpx.Client, app: FastAPI, settings: Settings
) -> None:
    mine = submit_over_http(http, TINY)["id"]
    with calling(app, key_for(settings.database, owner="bob", scope=Scope.READ)) as bob:
        assert bob.get(PLACE, params={"arm": mine}).status_code == 404
        assert bob.get(f"{PLACE}/figure.svg", params={"arm": mine}).status_code == 404
