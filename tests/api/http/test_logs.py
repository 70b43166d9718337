"""The log: one JSON object per request."""

import json

import httpx
import pytest

from tests.builders.experiments import submit_over_http
from tests.builders.specifications import Document


def _logged(capsys: pytest.CaptureFixture[str]) -> list[Document]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_request_is_logged_under_the_id_that_its_answer_carries(
    http: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = http.get("/v1/experiments/exp_0")
    (line,) = _logged(capsys)
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/experiments/exp_0", 404)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["experiment_id"] == "exp_0"
    assert 0 < line["seconds"] < 10


def test_a_submission_names_what_it_made(http: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    made, line, *_ = submit_over_http(http), *_logged(capsys)
    assert (line["event"], line["experiment_id"]) == ("experiment submitted", made["id"])
    assert len(line["request_id"]) == 32


def test_an_id_that_the_caller_gives_is_kept(http: httpx.Client) -> None:
    assert http.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize("id", ["", "two words", "x" * 129, '"}'])
def test_an_id_that_does_not_fit_a_log_is_replaced(http: httpx.Client, id: str) -> None:
    assert len(http.get("/healthz", headers={"X-Request-ID": id}).headers["x-request-id"]) == 32


def test_probes_are_not_logged(http: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    http.get("/healthz")
    http.get("/readyz")
    assert _logged(capsys) == []
