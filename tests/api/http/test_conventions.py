"""Conventions of HTTP: HEAD, compression, conditional requests, pages by links, and an error for each
parameter that is not known.
"""

from ipaddress import ip_address

import httpx
import pytest
from fastapi import FastAPI

from api.webhooks.service import UrlValidator
from fedcore.platform.store import Database
from fedcore.settings import Settings
from fedcore.simulation.report import RoundReport
from tests.builders.claims import end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS
from tests.support.access import bearer
from tests.support.asgi import application, calling

IDENTITY = {"Accept-Encoding": "identity"}


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    """Looks up no names."""
    return application(settings, UrlValidator(lambda _host, _port: [ip_address("93.184.216.34")]))


def _three_rounds(_: object) -> list[RoundReport]:
    return [report(round, train_loss=1.0 / round) for round in (1, 2, 3)]


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (
            "/v1/experiments?limt=3",
            (
                "unknown parameter (did you mean limit?); known ones are: archived, created_after,"
                " created_before, cursor, limit, "
            ),
        ),
        ("/v1/compare/figure.svg?limt=3", "known ones are: arm, "),
        ("/v1/me?limt=3", "this takes no parameters"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_known_ones(
    app: FastAPI, http: httpx.Client, path: str, known: str
) -> None:
    answer = http.get(path)
    (flaw,) = answer.json()["errors"]
    assert (answer.status_code, flaw["pointer"]) == (422, "?limt")
    assert known in flaw["detail"]
    with calling(app) as stranger:
        assert stranger.get(path).status_code == 401


@pytest.mark.parametrize("path", ["/v1/me", "/v1/catalog", "/v1/experiments/exp_0", "/healthz", "/docs"])
def test_head_answers_as_get_without_the_body(http: httpx.Client, path: str) -> None:
    got, head = http.get(path), http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    differing = {"x-request-id", "ratelimit"}
    assert {**head.headers, **dict.fromkeys(differing)} == {**got.headers, **dict.fromkeys(differing)}


def test_pages_may_be_linked_with_any_parameters(browser: httpx.Client) -> None:
    assert browser.get("/compare?tab=curves").status_code == 200


def test_head_of_a_stream_ends(http: httpx.Client) -> None:
    head = http.head(f"/v1/experiments/{submit_over_http(http)['id']}/events")
    assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert http.head("/v1/experiments/exp_0/cancel").status_code == 405


def test_large_responses_are_compressed_for_those_who_take_it(http: httpx.Client) -> None:
    plain, packed = http.get("/v1/catalog", headers=IDENTITY), http.get("/v1/catalog")
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()
    assert int(packed.headers["content-length"]) < len(plain.content) / 4
    assert packed.headers["etag"] == plain.headers["etag"]
    assert "content-encoding" not in http.get("/v1/me", headers={"Accept-Encoding": "gzip"}).headers


def test_get_answers_304_while_the_client_has_the_state(http: httpx.Client) -> None:
    path = f"/v1/experiments/{submit_over_http(http)['id']}"
    tag = http.get(path).headers["etag"]
    for known in (tag, tag.removeprefix("W/"), f'"another", {tag}', "*"):
        again = http.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-type" not in again.headers
    http.patch(path, json={"name": "renamed"})
    changed = http.get(path, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["name"]) == (200, "renamed")
    assert changed.headers["etag"] != tag


def test_a_change_is_refused_once_the_state_is_another(http: httpx.Client) -> None:
    webhook = http.post("/v1/webhooks", json={"url": "https://hooks.example.org/"}).headers["location"]
    key = http.post("/v1/keys", json={"owner": "ann"}).json()["id"]
    experiment = f"/v1/experiments/{submit_over_http(http)['id']}"
    for path in (experiment, f"/v1/keys/{key}", webhook):
        tag = http.get(path).headers["etag"]
        assert http.patch(path, json={"name": "first"}, headers={"If-Match": tag}).status_code == 200
        refused = http.patch(path, json={"name": "second"}, headers={"If-Match": tag})
        assert (refused.status_code, refused.json()["title"]) == (412, "Precondition Failed")
        assert '"first"' in http.get(path).text
        assert http.patch(path, json={"name": "third"}, headers={"If-Match": "*"}).status_code == 200
        if path == experiment:
            assert http.delete(path, headers={"If-Match": tag}).status_code == 412
            tag = http.get(path).headers["etag"]
            assert http.delete(path, headers={"If-Match": tag}).status_code == 204


def test_notes_of_a_run_are_not_written_over_those_of_somebody_else(http: httpx.Client) -> None:
    runs = http.get(f"/v1/experiments/{submit_over_http(http)['id']}/runs").json()["items"]
    path = f"/v1/runs/{runs[0]['id']}"
    tag = http.get(path).headers["etag"]
    assert http.patch(path, json={"notes": "first"}, headers={"If-Match": tag}).status_code == 200
    refused = http.patch(path, json={"notes": "second"}, headers={"If-Match": tag})
    assert (refused.status_code, refused.json()["title"]) == (412, "Precondition Failed")
    assert http.get(path).json()["notes"] == "first"
    assert http.patch(path, json={"notes": "third"}, headers={"If-Match": "*"}).status_code == 200


def test_lists_and_rows_link_to_their_next_pages(http: httpx.Client, rows: Database) -> None:
    ids = [submit_over_http(http, {**TINY, "name": f"n&m {index}"})["id"] for index in range(3)]
    held = end_runs(rows, _three_rounds, 1)
    assert [item["id"] for item in _walked(http, "/v1/experiments?limit=2&search=n%26m")] == ids[::-1]
    http.post("/v1/keys", json={"owner": "ann"})
    assert len(_walked(http, "/v1/keys?limit=1")) == 2
    assert len(_walked(http, "/v1/arms?limit=1&fields=local.lr")) == 3
    path = f"/v1/runs/{held[0].run_id}/metrics"
    assert [row["round"] for row in _walked(http, f"{path}?limit=2")] == [1, 2, 3]
    assert [row["round"] for row in _walked(http, f"{path}?cursor=1&limit=1")] == [2, 3]


def _walked(http: httpx.Client, path: str) -> list[dict[str, object]]:
    """Items of all pages."""
    found, links = [], 0
    while path:
        answer = http.get(path)
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        path = answer.links.get("next", {}).get("url", "")
        links += 1
    assert links > 1
    return found


def test_a_repeated_request_is_told_that_nothing_new_was_created(http: httpx.Client) -> None:
    first, second = (
        http.post("/v1/experiments", json=TWO_ARMS, headers={"Idempotency-Key": "once"}) for _ in range(2)
    )
    assert first.json()["id"] == second.json()["id"]
    assert [answer.headers.get("idempotency-replayed") for answer in (first, second)] == [None, "true"]


def test_a_stranger_learns_no_limits(app: FastAPI, http: httpx.Client, admin_key: str) -> None:
    with calling(app) as stranger:
        assert "ratelimit" not in stranger.get("/v1/me").headers
        assert "ratelimit" in stranger.get("/v1/experiments/exp_0", headers=bearer(admin_key)).headers
