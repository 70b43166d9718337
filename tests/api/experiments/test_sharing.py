"""Experiments that owners share: who sees and changes what."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.platform.store import Database, runs
from fedcore.settings import Settings
from tests.api.conftest import browsing
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.support.access import key_for
from tests.support.asgi import calling


@pytest.fixture
def clients(app: FastAPI, settings: Settings) -> Iterator[list[httpx.Client]]:
    """Clients of three users who may submit: ann, ben and eve."""
    keys = [key_for(settings.database, name, Scope.SUBMIT) for name in ("ann", "ben", "eve")]
    with ExitStack() as stack:
        yield [stack.enter_context(calling(app, key)) for key in keys]


def test_readers_read_writers_change_and_owners_delete_and_share(
    app: FastAPI, settings: Settings, clients: list[httpx.Client], rows: Database
) -> None:
    ann, ben, eve = clients
    id = submit_over_http(ann)["id"]
    path = f"/v1/experiments/{id}"
    run = ann.get(f"{path}/runs").json()["items"][0]["id"]
    readable = [
        path,
        *(f"{path}/{part}" for part in ("runs", "results", "theory", "access")),
        f"/v1/runs/{run}",
        f"/v1/runs/{run}/metrics",
        f"/v1/compare?arm={id}",
        f"/v1/arms?experiment={id}",
    ]
    changes = [
        ("PATCH", path, {"name": "theirs"}),
        ("PATCH", f"/v1/runs/{run}", {"notes": "theirs"}),
        ("POST", f"{path}/pause", None),
        ("POST", f"{path}/resume", None),
        ("POST", f"{path}/extend", {"seeds": [7]}),
        ("POST", f"{path}/cancel", None),
    ]
    own = [("PATCH", f"{path}/access", {"read": ["mallory"]}), ("DELETE", path, None)]

    def statuses(http: httpx.Client, requests: Sequence[tuple[str, str, object]]) -> set[int]:
        return {http.request(method, to, json=body).status_code for method, to, body in requests}

    def reads(http: httpx.Client) -> set[int]:
        return {http.get(to).status_code for to in readable}

    def listed(http: httpx.Client) -> bool:
        found = {bool(http.get(to).json()["items"]) for to in ("/v1/experiments", "/v1/arms")}
        assert len(found) == 1
        return found.pop()

    assert reads(ben) == {404}
    assert statuses(ben, [*changes, *own]) == {404}
    assert not listed(ben)

    answer = ann.patch(f"{path}/access", json={"read": ["ben", "eve"], "write": ["eve"]})
    assert answer.json() == {"owner": "ann", "read": ["ben"], "write": ["eve"]}
    assert (reads(ben), statuses(ben, [*changes, *own]), listed(ben)) == ({200}, {403}, True)
    with rows.reading() as session:
        assert runs.visible(session, [run], "ben") == {run}
        assert runs.visible(session, [run], "mallory") == set()
    assert (reads(eve), statuses(eve, changes), statuses(eve, own)) == ({200}, {200}, {403})
    assert ann.get(path).json()["name"] == "theirs"

    with browsing(app, key_for(settings.database, "ben", Scope.SUBMIT)) as reader:
        page = reader.get(f"/experiments/{id}")
        assert (page.status_code, re.findall(r'data-act="', page.text)) == (200, [])
        assert "<textarea" not in page.text
        assert "shared by ann" in reader.get("/").text
    with browsing(app, key_for(settings.database, "eve", Scope.SUBMIT)) as writer:
        offered = re.findall(r'data-act="(\w+)"', writer.get(f"/experiments/{id}").text)
        assert "edit" in offered
        assert "delete" not in offered

    assert ann.patch(f"{path}/access", json={"read": []}).json()["write"] == ["eve"]
    assert reads(ben) == {404}
    assert not listed(ben)
    assert (reads(eve), reads(ann), statuses(ann, [own[1]])) == ({200}, {200}, {204})


def test_names_are_checked_and_copies_belong_to_their_makers(clients: list[httpx.Client]) -> None:
    ann, ben, _ = clients
    id = submit_over_http(ann, TINY | {"name": "shared"})["id"]
    refused = ann.patch(f"/v1/experiments/{id}/access", json={"read": [""], "anyone": True})
    pointers = {flaw["pointer"] for flaw in refused.json()["errors"]}
    assert (refused.status_code, pointers) == (422, {"/read/0", "/anyone"})
    ann.patch(f"/v1/experiments/{id}/access", json={"read": ["ben"]})
    copy = submit_over_http(ben, ben.get(f"/v1/experiments/{id}").json()["specification"])
    assert (copy["owner"], ann.get(f"/v1/experiments/{copy['id']}").status_code) == ("ben", 404)
