"""Whatever is sent is answered, and nothing is an error of the service: mutated specifications,
dates, headers.
"""

import re
from contextlib import redirect_stderr
from io import StringIO
from itertools import cycle, product
from typing import Any

import httpx
import pytest
import typer
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples

from fedcore import ExperimentSpec, presets
from fedq.cli.planning import _validate
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import DIGITS, QUADRATIC, SYNTHETIC, TINY, Document
from tests.support.mutations import mutated

DOCUMENTS: list[Document] = [
    *(presets.load(name).spec for name in presets.names()),
    SYNTHETIC,
    QUADRATIC,
    DIGITS,
]
FUZZ: dict[str, Any] = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}
ENDS = ("0001-01-01", "1969-12-31", "1970-01-01", "9999-12-31")
MOMENTS = (*(f"{day}T00:00:00Z" for day in ENDS), "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")
ODD_HEADERS = (
    *(
        "",
        " ",
        "null",
        "*",
        "http://[",
        "http://[::1",
        "http://a:99999999",
        "//",
        "://",
        "%00",
        "%ff%fe",
        "\xff\xfe",
        "a" * 5_000,
        "-1",
    ),
    *(
        "1e999",
        "9" * 400,
        ";",
        ";;;===",
        "a=b=c",
        ",,,",
        "q=",
        "text/html;q=nan",
        "text/html;q=1e999",
        "application/json; charset=utf-16",
    ),
    *(
        "Bearer",
        "Bearer fq_\xff",
        "Basic Og==",
        f"00-{'0' * 32}-{'0' * 16}-zz",
        "ff-x-y-z",
        "javascript:alert(1)",
        "fedq:70000",
        "[zz]",
    ),
    *("exp_1:2", "1_2_3", "bytes=0-", "../../etc", "<script>", '"', "{"),
)
NAMES = (
    *(
        "origin",
        "host",
        "hx-current-url",
        "hx-request",
        "accept",
        "last-event-id",
        "idempotency-key",
        "traceparent",
        "tracestate",
        "cookie",
    ),
    *(
        "authorization",
        "content-type",
        "x-request-id",
        "sec-fetch-site",
        "range",
        "accept-encoding",
        "x-forwarded-for",
        "user-agent",
    ),
)


@examples(max_examples=150, **FUZZ)
@given(mutated(DOCUMENTS))
def test_a_mutated_specification_is_checked_and_never_breaks_the_check(document: Document) -> None:
    """`fedq plan` checks so; each error points somewhere, or says what is wrong with the whole."""
    with redirect_stderr(StringIO()) as told:
        try:
            _validate("spec.yaml", document, "", ExperimentSpec)
            is_valid = True
        except typer.Exit:
            is_valid = False
    lines = told.getvalue().splitlines()
    assert bool(lines) != is_valid
    assert all(re.match("spec.yaml: /.*: .", line) for line in lines), lines


@pytest.mark.slow
def test_a_mutated_specification_is_accepted_or_refused(http: httpx.Client) -> None:
    @examples(max_examples=150, **FUZZ)
    @given(mutated(DOCUMENTS))
    def sent(document: Document) -> None:
        dry = http.post("/v1/experiments?dry_run=true", json=document)
        assert dry.status_code in (200, 400, 403, 413, 422), dry.text
        if dry.status_code == 200:
            assert http.post("/v1/experiments", json=document).status_code in (201, 403)
        else:
            assert dry.headers["content-type"] == "application/problem+json"

    sent()


@pytest.mark.parametrize("moment", MOMENTS)
def test_dates_at_the_ends_of_the_calendar_are_answered(http: httpx.Client, moment: str) -> None:
    submit_over_http(http, TINY)
    day = moment[:10]
    for bound in ("created_after", "created_before"):
        assert http.get("/v1/experiments", params={bound: moment}).status_code in (200, 422)
    for bound in ("since", "until"):
        assert http.get("/", params={bound: day}, headers={"Accept": "text/html"}).status_code < 500
    made = http.post("/v1/keys", json={"owner": "ann", "scope": "read", "name": "x", "expires_at": moment})
    assert made.status_code == 422
    assert made.json()["errors"][0]["pointer"] == "/expires_at"


def test_no_day_is_beyond_the_last_one(http: httpx.Client) -> None:
    made = submit_over_http(http, TINY)
    found = http.get("/v1/experiments", params={"created_before": "9999-12-31T00:00:00Z"}).json()["items"]
    assert [item["id"] for item in found] == [made["id"]]
    assert (
        http.get("/v1/experiments", params={"created_before": "1969-12-31T00:00:00Z"}).json()["items"] == []
    )


REQUESTS = [
    ("GET", "/"),
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("GET", "/v1/me"),
    ("GET", "/nope"),
    ("POST", "/v1/experiments?dry_run=true"),
]


def assert_answered(http: httpx.Client, name: str, value: str, method: str, path: str) -> None:
    headers = [
        (b"accept", b"text/html"),
        (b"hx-request", b"true"),
        (name.encode(), value.encode("latin-1")),
    ]
    content = b"key=x&next=/" if method == "POST" else None
    answer = http.request(method, path, content=content, headers=headers)
    assert answer.status_code < 500, (method, path, name, value, answer.text)


def test_an_odd_header_is_answered(http: httpx.Client) -> None:
    """Each header with every third value, and each request in turn."""
    requests = cycle(REQUESTS)
    for first, name in enumerate(NAMES):
        for value in ODD_HEADERS[first % 3 :: 3]:
            assert_answered(http, name, value, *next(requests))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_every_odd_header_is_answered(http: httpx.Client, name: str) -> None:
    for value, (method, path) in product(ODD_HEADERS, REQUESTS):
        assert_answered(http, name, value, method, path)


@pytest.mark.parametrize("kind", [None, 1, 0.5, True, [], {}])
def test_a_swept_block_whose_kind_is_no_text_points_at_the_sweep(http: httpx.Client, kind: Any) -> None:
    answer = http.post(
        "/v1/experiments?dry_run=true", json={**TINY, "sweep": {"algorithm": [{"kind": kind, "mu": 0.1}]}}
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("/sweep")


def test_a_name_of_spaces_is_refused_wherever_names_are_given(http: httpx.Client) -> None:
    experiment = submit_over_http(http, TINY)["id"]
    key = http.post("/v1/keys", json={"owner": "ann", "name": ""}).json()["id"]
    hook = "https://hooks.example.org"
    for method, path, document in (
        ("POST", "/v1/experiments", TINY),
        ("PATCH", f"/v1/experiments/{experiment}", {}),
        ("POST", "/v1/keys", {"owner": "ann"}),
        ("PATCH", f"/v1/keys/{key}", {}),
        ("POST", "/v1/webhooks", {"url": hook}),
        ("PATCH", "/v1/webhooks/whk_01j00000000000000000000000", {}),
    ):
        answer = http.request(method, path, json=document | {"name": " \t\u3000"})
        told = {"pointer": "/name", "detail": "must not consist of spaces only"}
        assert answer.status_code == 422, (method, path, answer.text)
        assert told.items() <= answer.json()["errors"][0].items()
    upload = http.post("/v1/datasets", params={"name": "  "}, content=b"")
    assert [error["pointer"] for error in upload.json()["errors"]] == ["?name"]


def test_an_absurd_number_of_samples_for_each_client_has_an_estimate(http: httpx.Client) -> None:
    partition = {"kind": "classes_per_client", "clients": 5, "classes": 2, "mean": 4, "sigma": 40}
    document = {**DIGITS, "problem": {**DIGITS["problem"], "partition": partition}}
    assert http.post("/v1/experiments?dry_run=true", json=document).status_code == 200
