"""Errors that come from no endpoint's own rules."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.http.middleware import HEADERS
from fedcore.platform.access import Token
from fedcore.settings import Settings
from tests.builders.specifications import TINY, Document
from tests.support.asgi import application, calling


def _problem(answer: httpx.Response, status: int) -> Document:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem: Document = answer.json()
    assert (problem["status"], problem["instance"]) == (status, answer.request.url.path)
    return problem


def test_a_path_that_there_is_not_is_named(http: httpx.Client) -> None:
    problem = _problem(http.get("/v2/experiments"), 404)
    assert (problem["type"], problem["title"], problem["detail"]) == (
        "about:blank",
        "Not Found",
        "Not found: /v2/experiments",
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/experiments", "GET, POST"),
        ("POST", "/v1/experiments/exp_0", "GET, PATCH, DELETE"),
        ("DELETE", "/healthz", "GET"),
    ],
)
def test_a_method_that_there_is_not_is_answered_with_all_that_there_are(
    http: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = http.request(method, path)
    assert answer.headers["allow"] == allowed
    assert _problem(answer, 405)["detail"] == f"{path} allows {allowed}, not {method}."


def test_a_database_that_is_away_is_unavailable_for_now(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, home=tmp_path, database_url="postgresql://nobody@127.0.0.1:1/fedq")
    with calling(application(settings), Token.of(f"key_{0:026}").text) as http:
        answer = http.get("/v1/queue")
        assert _problem(answer, 503)["detail"] == "The database is unavailable. Try again."
        assert answer.headers["retry-after"] == "1"


def test_an_error_that_nobody_expected_says_nothing_of_its_cause(app: FastAPI, http: httpx.Client) -> None:
    app.add_api_route("/broken", lambda: 1 / 0, include_in_schema=False)
    problem = _problem(http.get("/broken"), 500)
    assert problem["detail"] == "Internal error. See the log of the service for details."
    assert "ZeroDivision" not in str(problem)


@pytest.mark.parametrize("accept", ["application/json", "text/html"])
def test_an_error_that_nobody_expected_has_the_headers_of_every_answer_and_its_request_s_id_in_the_log(
    app: FastAPI, http: httpx.Client, accept: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.add_api_route("/broken", lambda: 1 / 0, include_in_schema=False)
    answer = http.get("/broken", headers={"Accept": accept, "X-Request-ID": "the-one"})
    assert answer.status_code == 500
    assert answer.headers["content-type"].startswith(accept) == (accept == "text/html")
    assert [name for name in HEADERS if name not in answer.headers] == []
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-request-id"] == "the-one"
    (told,) = [entry for entry in caplog.records if entry.levelname == "ERROR"]
    assert isinstance(told.msg, dict)
    assert (told.msg["event"], told.msg["request_id"]) == ("unexpected error", "the-one")


@pytest.mark.parametrize(
    ("changes", "pointer", "told"),
    [
        (
            {"algorithm": "fedprox"},
            "/algorithm",
            "must be a mapping with a kind, e.g. {kind: ...}, not 'fedprox'",
        ),
        ({"local": 0.1}, "/local", "must be a mapping, not 0.1"),
        ({"sweep": 3}, "/sweep", "must be a mapping, not 3"),
    ],
)
def test_a_value_where_a_block_belongs_is_told_so(
    http: httpx.Client, changes: Document, pointer: str, told: str
) -> None:
    problem = _problem(http.post("/v1/experiments", json=TINY | changes), 422)
    assert problem["errors"] == [{"pointer": pointer, "detail": told}]
