"""What may be a body at all, seen from outside: `POST /v1/experiments?dry_run=true` stores nothing and reads everything."""

import json
from collections.abc import Iterator

import httpx
import pytest
import yaml

from fedcore.settings import Settings
from tests.api.histories import TINY
from tests.documents import Document

LIMITS = Settings(_env_file=None)


def _dry_run(http: httpx.Client, body: bytes | Iterator[bytes], media_type: str | None = "application/json") -> httpx.Response:
    headers = {} if media_type is None else {"Content-Type": media_type}
    return http.post("/v1/experiments?dry_run=true", content=body, headers=headers)


def _flaws(answer: httpx.Response) -> list[Document]:
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"]


@pytest.mark.parametrize("media_type", ["application/yaml", "text/yaml; charset=utf-8", "application/x-yaml"])
def test_a_specification_may_be_yaml(http: httpx.Client, media_type: str) -> None:
    assert _dry_run(http, yaml.safe_dump(TINY).encode(), media_type).json()["name"] == "tiny"


@pytest.mark.parametrize("media_type", [None, "application/json", "Application/JSON; charset=utf-8"])
def test_a_body_is_json_unless_it_says_otherwise(http: httpx.Client, media_type: str | None) -> None:
    assert _dry_run(http, json.dumps(TINY).encode(), media_type).json()["name"] == "tiny"


@pytest.mark.parametrize("media_type", ["text/plain", "multipart/form-data", "application/xml"])
def test_another_media_type_is_refused(http: httpx.Client, media_type: str) -> None:
    answer = _dry_run(http, b"{}", media_type)
    assert answer.status_code == 415
    assert media_type in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"{", "application/json"),
        (b"", "application/json"),
        (b"\xff", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"1" * 5_000, "application/json"),
        (b"a: [", "application/yaml"),
        (b"[" * 100_000, "application/yaml"),
    ],
)
def test_a_body_that_cannot_be_read_is_a_bad_request(http: httpx.Client, body: bytes, media_type: str) -> None:
    answer = _dry_run(http, body, media_type)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"The body is not {media_type}: ")


@pytest.mark.parametrize(
    ("limit", "media_type"), [(LIMITS.json_max_bytes, "application/json"), (LIMITS.yaml_max_bytes, "application/yaml")]
)
def test_a_body_above_the_limit_is_refused_whether_or_not_it_says_its_size(http: httpx.Client, limit: int, media_type: str) -> None:
    stream = (b" " * 2**16 for _ in range(limit // 2**16 + 1))
    for body in (b" " * (limit + 1), stream):
        answer = _dry_run(http, body, media_type)
        assert answer.status_code == 413
        assert str(limit) in answer.json()["detail"]


def test_aliases_do_not_unfold_far(http: httpx.Client) -> None:
    layers = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20))]
    answer = _dry_run(http, "\n".join(layers).encode(), "application/yaml")
    assert (answer.status_code, answer.json()["errors"][0]["line"]) == (400, 6)
    assert answer.json()["errors"][0]["detail"] == "aliases repeat more than 500,000 values"


def test_a_body_holds_no_more_than_so_many_values(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.bodies.documents.MAX_VALUES", 10_000)
    assert _dry_run(http, json.dumps({"seeds": [0] * 10_000}).encode()).status_code == 413


def test_a_document_that_holds_itself_is_refused(http: httpx.Client) -> None:
    flaws = _flaws(_dry_run(http, b"&a {name: *a}", "application/yaml"))
    assert flaws[0]["detail"] == "must not lie deeper than 32 levels"


@pytest.mark.parametrize(
    ("text", "pointer", "detail"),
    [
        ('{"rounds": NaN}', "/rounds", "must be a finite number, not nan"),
        ('{"local": {"lr": 1e999}}', "/local/lr", "must be a finite number, not inf"),
        ('{"name": "\\u0000"}', "/name", "must not hold the character NUL or half of a surrogate pair"),
        ('{"tags": ["\\ud800"]}', "/tags/0", "must not hold the character NUL or half of a surrogate pair"),
        ('{"\\u0000": 1}', "", "every key must be text"),
    ],
)
def test_values_that_no_database_takes_are_pointed_at(http: httpx.Client, text: str, pointer: str, detail: str) -> None:
    assert _flaws(_dry_run(http, text.encode())) == [{"pointer": pointer, "detail": detail}]


def test_no_more_than_a_hundred_flaws_are_listed(http: httpx.Client) -> None:
    assert len(_flaws(_dry_run(http, json.dumps({str(n): n for n in range(500)}).encode()))) == 100


@pytest.mark.parametrize("body", [b"null", b"[]", b'"text"', b"1"])
def test_a_body_that_is_no_object_is_told_so(http: httpx.Client, body: bytes) -> None:
    (flaw,) = _flaws(_dry_run(http, body))
    assert flaw["pointer"] == ""


BROKEN = """\
name: broken            # a comment
problem:
  dataset: {kind: quadratic, generate: {dim: 3, clients: 2}}
algorithm: {kind: fedsgd}
local:
  lr: -1
  batchsize: full
seeds: [0, none]
"""


def test_flaws_in_yaml_have_line_and_column_all_at_once(http: httpx.Client) -> None:
    flaws = _flaws(_dry_run(http, BROKEN.encode(), "application/yaml"))
    places = {flaw["pointer"]: (flaw["line"], flaw["column"]) for flaw in flaws}
    expected = {"/algorithm/kind": (4, 13), "/local/lr": (6, 3), "/local/batchsize": (7, 3), "/seeds/1": (8, 12), "/rounds": (1, 1)}
    assert places == expected


def test_what_only_the_whole_shows_has_a_place_too(http: httpx.Client) -> None:
    text = yaml.safe_dump({"preset": "demo", "overrides": {"rounds": 5, "seeds": [1, 1]}}, sort_keys=False)
    (flaw,) = _flaws(_dry_run(http, text.encode(), "application/yaml"))
    assert (flaw["pointer"], flaw["line"], flaw["column"]) == ("/overrides/seeds", 4, 3)


def test_flaws_in_json_have_pointers_alone(http: httpx.Client) -> None:
    assert all(flaw.keys() == {"pointer", "detail"} for flaw in _flaws(_dry_run(http, b'{"name": "x"}')))


@pytest.mark.parametrize(
    ("body", "media_type", "place"),
    [
        (b"a: 1\nb: [", "application/yaml", (2, 4)),
        (b"a: 1\na: 2", "application/yaml", (2, 1)),
        (b'{"a": 1,\n "b"}', "application/json", (2, 5)),
    ],
)
def test_what_cannot_be_read_is_pointed_at(http: httpx.Client, body: bytes, media_type: str, place: tuple[int, int]) -> None:
    (flaw,) = _dry_run(http, body, media_type).json()["errors"]
    assert (flaw["pointer"], flaw["line"], flaw["column"]) == ("", *place)


def test_of_errors_without_number_the_first_are_told_and_the_others_not_written_down(http: httpx.Client) -> None:
    flaws = _flaws(_dry_run(http, json.dumps({**TINY, "seeds": ["x"] * 20_000}).encode()))
    assert [flaw["pointer"] for flaw in flaws[:20]] == [f"/seeds/{place}" for place in range(20)]
    assert not [flaw for flaw in flaws if flaw["pointer"] == "/seeds/20"]


def test_errors_that_all_lie_far_behind_are_counted(http: httpx.Client) -> None:
    values = [1] * 100 + ["x"] * 20_000
    document = {**TINY, "systems": {"steps": {"kind": "per_client", "values": values}}}
    assert _flaws(_dry_run(http, json.dumps(document).encode())) == [{"pointer": "", "detail": "20,000 values are not what they must be"}]


def test_a_block_may_have_so_many_fields(http: httpx.Client) -> None:
    flaws = _flaws(_dry_run(http, json.dumps({"sweep": {str(n): [1] for n in range(10_001)}}).encode()))
    assert flaws == [{"pointer": "/sweep", "detail": "a block may have 10,000 fields, and this one has 10,001"}]
