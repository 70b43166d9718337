"""Who may do what, on every route that the OpenAPI document lists."""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import select

from api.app import create_app
from api.http.authentication import REMEMBERED_S
from fedcore.platform.access import Scope, Token
from fedcore.platform.store import Database, open_database, workers
from fedcore.platform.store.tables import Base
from fedcore.settings import Settings
from tests.builders.claims import claim
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, Document
from tests.builders.transactions import write
from tests.builders.webhooks import create_webhook
from tests.platform.store.test_bundles import bundle, weights
from tests.platform.store.test_datasets import keep
from tests.support.access import bearer, key_for
from tests.support.asgi import calling
from tests.support.described import described, operations
from tests.support.polling import eventually

OPEN = {"/healthz", "/readyz", "/metrics"}
ROUTES = operations()
OWNED = [
    (method, path)
    for method, path in ROUTES
    if re.search(r"\{(experiment_id|run_id|dataset_id|webhook_id|bundle_digest|weights_digest)\}", path)
]
READ = [
    path
    for method, path in OWNED
    if method == "get"
    and not path.endswith(("model", "checkpoint", "events", "claims", "reproduction", "search", "content"))
]
BODIES: dict[tuple[str, str], Any] = {
    ("post", "/v1/experiments"): TINY,
    ("patch", "/v1/experiments/{experiment_id}"): {"name": "mine now"},
    ("patch", "/v1/experiments/{experiment_id}/access"): {"read": ["bob"]},
    ("patch", "/v1/datasets/{dataset_id}/access"): {"read": ["bob"]},
    ("patch", "/v1/bundles/{bundle_digest}/access"): {"read": ["bob"]},
    ("patch", "/v1/weights/{weights_digest}/access"): {"read": ["bob"]},
    ("patch", "/v1/runs/{run_id}"): {"notes": "mine now"},
    ("post", "/v1/experiments/{experiment_id}/extend"): {"seeds": [7]},
    ("post", "/v1/keys"): {"owner": "eve", "scope": "admin"},
    ("patch", "/v1/keys/{key_id}"): {"scope": "admin"},
    ("post", "/v1/webhooks"): {"url": "https://hooks.example.org/"},
    ("patch", "/v1/webhooks/{webhook_id}"): {"name": "mine now"},
}
FOREIGN = [{}, bearer("guess"), bearer(Token.of("key_" + "0" * 26).text), {"Authorization": "Basic YTpi"}]


class House(NamedTuple):
    """A service with Ann's experiment, run, data set and key, which no refused request changes: it
    serves all the tests below.
    """

    stranger: httpx.Client
    keys: dict[str, dict[str, str]]
    """Headers by owner and scope, as `ann read`."""
    things: dict[str, str]
    """Ids of Ann's resources by names of path parameters."""
    nothing: dict[str, str]
    """Ids of nothing."""

    def ask(
        self, method: str, path: str, headers: dict[str, str], things: dict[str, str] | None = None
    ) -> httpx.Response:
        filled = path.format(
            **(things or self.things), name="demo", form="html" if "report" in path else "svg"
        )
        return self.stranger.request(method.upper(), filled, json=BODIES.get((method, path)), headers=headers)


@pytest.fixture(scope="module")
def house(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    home = tmp_path_factory.mktemp("house")
    url = f"sqlite:///{shutil.copy(sqlite_template, home / 'fedq.db')}"
    keys = {
        f"{owner} {scope}": bearer(key_for(url, owner, scope)) for owner in ("ann", "bob") for scope in Scope
    }
    with (
        calling(create_app(Settings(_env_file=None, home=home, database_url=url))) as http,
        closing(open_database(url)) as rows,
    ):
        experiment = http.post("/v1/experiments", json=TINY, headers=keys["ann submit"]).json()["id"]
        (run,) = http.get(f"/v1/experiments/{experiment}/runs", headers=keys["ann read"]).json()["items"]
        key = http.get("/v1/me", headers=keys["ann read"]).json()["key"]["id"]
        hook = create_webhook(rows, owner="ann").id
        things = {
            "experiment_id": experiment,
            "run_id": run["id"],
            "dataset_id": keep(rows).id,
            "bundle_digest": bundle(rows).digest,
            "weights_digest": weights(rows).digest,
            "key_id": key,
            "webhook_id": hook,
        }
        before = _rows(rows)
        nothing = {name: f"{id[:4]}{'0' * 26}" for name, id in things.items()}
        nothing |= dict.fromkeys(("bundle_digest", "weights_digest"), f"sha256:{'0' * 64}")
        yield House(http, keys, things, nothing)
        assert _rows(rows) == before


def _rows(database: Database) -> dict[str, Any]:
    """All rows but those that say when a key was used, and what was refused."""
    with database.reading() as session:
        tables = (table for name, table in Base.metadata.tables.items() if name not in {"api_key", "audit"})
        return {table.name: session.execute(select(table)).all() for table in tables}


@pytest.fixture
def ann(app: FastAPI, settings: Settings) -> Iterator[httpx.Client]:
    """A client of somebody who may submit."""
    with calling(app, key_for(settings.database, "ann", Scope.SUBMIT)) as client:
        yield client


@pytest.fixture
def bob(app: FastAPI, settings: Settings) -> Iterator[httpx.Client]:
    """A client of somebody else who may."""
    with calling(app, key_for(settings.database, "bob", Scope.SUBMIT)) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_valid_key_nothing_is_told_and_nothing_done(house: House, method: str, path: str) -> None:
    for headers in FOREIGN:
        answer = house.ask(method, path, headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="FedQ"')
        assert answer.json()["type"] == "urn:fedq:problem:unauthenticated"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_each_route_wants_the_scope_that_the_document_says(house: House, method: str, path: str) -> None:
    (requirement,) = described()["paths"][path][method]["security"]
    (scope,) = requirement["key"]
    if scope == "code":  # No other scope includes it.
        for owner in ("ann", "bob"):
            for given in Scope:
                answer = house.ask(method, path, house.keys[f"{owner} {given}"])
                assert (answer.status_code, answer.json()["type"]) == (403, "urn:fedq:problem:forbidden")
                assert "`code`" in answer.json()["detail"]
        return
    assert (
        scope == "admin"
        if path.startswith(("/v1/keys", "/v1/audit"))
        else (scope == "read") == (method == "get")
    )
    for lesser in (given for given in Scope if not given.covers(Scope(scope))):
        answer = house.ask(method, path, house.keys[f"ann {lesser}"])
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:fedq:problem:forbidden")
        assert f"`{scope}`" in answer.json()["detail"]


@pytest.mark.parametrize(("method", "path"), OWNED)
def test_resources_of_others_are_not_there(house: House, method: str, path: str) -> None:
    answer = house.ask(method, path, house.keys["bob submit"])
    absent = house.ask(method, path, house.keys["bob submit"], house.nothing)
    assert (answer.status_code, absent.status_code) == (404, 404)
    told, of_nothing = answer.json()["detail"], absent.json()["detail"]
    for name, id in house.things.items():
        told, of_nothing = told.replace(id, "ID"), of_nothing.replace(house.nothing[name], "ID")
    assert told == of_nothing


@pytest.mark.parametrize("path", READ)
def test_owners_read_what_is_theirs_and_administrators_all(house: House, path: str) -> None:
    assert house.ask("get", path, house.keys["ann read"]).status_code == 200
    assert house.ask("get", path, house.keys["bob admin"]).status_code == 200


def test_the_document_says_that_keys_are_asked_for_and_what_happens_without() -> None:
    document = described()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for method, path in ROUTES:
        assert {"401", "403"} <= document["paths"][path][method]["responses"].keys(), (method, path)
    assert all("security" not in operation for path in OPEN for operation in document["paths"][path].values())
    assert {
        (method, path) for path in document["paths"].keys() - OPEN for method in document["paths"][path]
    } == set(ROUTES)


def test_listings_hold_what_is_ones_own_and_for_administrators_everything(
    rows: Database, http: httpx.Client, ann: httpx.Client, bob: httpx.Client
) -> None:
    anns, bobs, dataset = submit_over_http(ann)["id"], submit_over_http(bob)["id"], keep(rows).id
    seen = [
        [item["id"] for item in client.get("/v1/experiments").json()["items"]] for client in (ann, bob, http)
    ]
    assert seen == [[anns], [bobs], [bobs, anns]]
    seen = [
        [item["id"] for item in client.get("/v1/datasets").json()["items"]] for client in (ann, bob, http)
    ]
    assert seen == [[dataset], [], [dataset]]


def test_nobody_trains_on_the_data_of_others_but_administrators(
    rows: Database, http: httpx.Client, ann: httpx.Client, bob: httpx.Client
) -> None:
    document = {
        **TINY,
        "problem": {"dataset": {"kind": "uploaded", "id": keep(rows).id}, "model": {"kind": "logistic"}},
    }
    answers = [client.post("/v1/experiments", json=document) for client in (ann, http, bob)]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert answers[2].json()["errors"][0]["pointer"] == "/problem/dataset/id"
    assert "there is no data set" in answers[2].json()["detail"]


def test_idempotency_keys_of_two_owners_have_nothing_to_do_with_each_other(
    http: httpx.Client, ann: httpx.Client
) -> None:
    made = [
        client.post("/v1/experiments", json=TINY, headers={"Idempotency-Key": "monday"}).json()
        for client in (ann, http, ann)
    ]
    assert [entry["owner"] for entry in made] == ["ann", "local", "ann"]
    assert made[0]["id"] == made[2]["id"] != made[1]["id"]


def test_a_worker_names_its_run_to_those_who_may_see_it(
    rows: Database, http: httpx.Client, ann: httpx.Client, bob: httpx.Client
) -> None:
    submit_over_http(ann)
    held = claim(rows).run_id
    write(rows, workers.seen, "w1", host="here", pid=1, queues=["default"], device="cpu", run_id=held)
    assert [client.get("/v1/workers").json()["items"][0]["run_id"] for client in (http, ann, bob)] == [
        held,
        held,
        None,
    ]


def test_a_key_is_shown_once_works_until_it_is_revoked_and_says_who_it_is(
    app: FastAPI, http: httpx.Client
) -> None:
    made = http.post("/v1/keys", json={"owner": "cleo", "scope": "read", "name": "laptop"}).json()
    assert made["key"].startswith(f"{made['prefix']}_")
    listed = http.get("/v1/keys")
    assert made["key"] not in listed.text
    assert {item["owner"] for item in listed.json()["items"]} == {"cleo", "local"}
    with calling(app, made["key"]) as cleo:
        assert cleo.get("/v1/me").json()["key"]["owner"] == "cleo"
        assert http.post(f"/v1/keys/{made['id']}/revoke").json()["revoked_at"] is not None
        refused = cleo.get("/v1/me")
        assert (refused.status_code, "was revoked" in refused.json()["detail"]) == (401, True)
    assert http.post(f"/v1/keys/{made['id']}/revoke").status_code == 200


def test_an_expired_key_is_refused_and_says_so(app: FastAPI, http: httpx.Client) -> None:
    made = http.post("/v1/keys", json={"owner": "cleo", "expires_at": "2026-01-01T00:00:00Z"}).json()
    with calling(app, made["key"]) as cleo:
        assert "expired at 2026-01-01T00:00:00" in cleo.get("/v1/me").json()["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"owner": "a b"}, "/owner"),
        ({"scope": "root"}, "/scope"),
        ({"owner": ""}, "/owner"),
        ({"max_waiting_runs": True}, "/max_waiting_runs"),
        ({"expires_at": 5}, "/expires_at"),
    ],
)
def test_a_key_for_nobody_or_for_anything_is_refused(
    http: httpx.Client, change: Document, pointer: str
) -> None:
    answer = http.post("/v1/keys", json={"owner": "cleo"} | change)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


@pytest.mark.slow
def test_a_key_revoked_by_another_process_is_refused_within_moments(
    settings: Settings, http: httpx.Client
) -> None:
    made = http.post("/v1/keys", json={"owner": "cleo"}).json()
    with calling(create_app(settings), made["key"]) as elsewhere:
        assert elsewhere.get("/v1/me").status_code == 200
        http.post(f"/v1/keys/{made['id']}/revoke")
        eventually(lambda: elsewhere.get("/v1/me").status_code == 401, timeout_s=5 * REMEMBERED_S)


def test_no_key_is_in_the_log_or_in_an_error(
    http: httpx.Client, admin_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, secret = admin_key, admin_key.rpartition("_")[2]
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    answers = [
        http.get("/v1/me"),
        http.get("/v1/me", headers=bearer(wrong)),
        http.get(f"/v1/experiments/{key}"),
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 404]
    assert wrong.rpartition("_")[2] not in answers[1].text
    assert "/v1/me" in (printed := "".join(capsys.readouterr()))
    assert secret not in answers[0].text
    assert secret not in printed
    assert wrong.rpartition("_")[2] not in printed


def test_a_key_is_changed_where_something_is_given_and_works_on(app: FastAPI, http: httpx.Client) -> None:
    made = http.post(
        "/v1/keys", json={"owner": "cleo", "scope": "read", "max_waiting_runs": 5, "max_compute_seconds": 60}
    ).json()
    path = f"/v1/keys/{made['id']}"
    with calling(app, made["key"]) as cleo:
        assert cleo.post("/v1/experiments", json=TINY).status_code == 403
        changed = http.patch(
            path, json={"scope": "submit", "max_running_runs": 2, "max_compute_seconds": None}
        )
        assert changed.status_code == 200
        assert cleo.post("/v1/experiments", json=TINY).status_code == 201
        assert cleo.get("/v1/me").json() == http.get(path).json()
    expected = {
        "scope": "submit",
        "name": "",
        "max_waiting_runs": 5,
        "max_running_runs": 2,
        "max_compute_seconds": None,
    }
    assert {name: http.get(path).json()["key"][name] for name in expected} == expected
    assert http.get(path).json()["usage"]["waiting_runs"] == 1
    assert (
        http.patch(path, json={"expires_at": "2026-01-01T00:00:00Z"}).json()["expires_at"]
        == "2026-01-01T00:00:00Z"
    )
    with calling(app, made["key"]) as cleo:
        assert cleo.get("/v1/me").status_code == 401


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"owner": "dan"}, "/owner"),
        ({"max_running_runs": -1}, "/max_running_runs"),
        ({"scope": None}, "/scope"),
        ({"expires_at": 5}, "/expires_at"),
    ],
)
def test_a_change_of_a_key_that_makes_no_sense_is_refused(
    http: httpx.Client, change: Document, pointer: str
) -> None:
    made = http.post("/v1/keys", json={"owner": "cleo"}).json()
    answer = http.patch(f"/v1/keys/{made['id']}", json=change)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_a_revoked_key_is_not_changed(http: httpx.Client) -> None:
    made = http.post("/v1/keys", json={"owner": "cleo"}).json()
    http.post(f"/v1/keys/{made['id']}/revoke")
    answer = http.patch(f"/v1/keys/{made['id']}", json={"expires_at": None})
    assert (answer.status_code, "was revoked" in answer.json()["detail"]) == (409, True)
    assert http.patch(f"/v1/keys/key_{'0' * 26}", json={"name": "x"}).status_code == 404
