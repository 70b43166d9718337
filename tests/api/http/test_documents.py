"""Limits of request bodies, seen from outside: `POST /v1/experiments?dry_run=true` stores nothing
and reads everything.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml

from api.experiments import routes
from api.http.documents import JSON, LARGE_BYTES, MAX_BYTES, MAX_VALUES, MAX_YAML_PARTS, YAML
from fedcore.errors import StateConflictError
from fedcore.platform.store.database import POOLED
from fedcore.settings import Settings
from tests.builders.specifications import SYNTHETIC, TINY, Document
from tests.support.asgi import application, calling


def _dry_run(
    http: httpx.Client, body: bytes | Iterator[bytes], media_type: str | None = "application/json"
) -> httpx.Response:
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
def test_a_body_that_cannot_be_read_is_a_bad_request(
    http: httpx.Client, body: bytes, media_type: str
) -> None:
    answer = _dry_run(http, body, media_type)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"The body is not valid {media_type}: ")


@pytest.mark.parametrize(
    ("limit", "media_type"),
    [(MAX_BYTES[JSON], JSON), (MAX_BYTES[YAML], YAML)],
)
def test_a_body_above_the_limit_is_refused_whether_or_not_it_says_its_size(
    http: httpx.Client, limit: int, media_type: str
) -> None:
    stream = (b" " * 2**16 for _ in range(limit // 2**16 + 1))
    for body in (b" " * (limit + 1), stream):
        answer = _dry_run(http, body, media_type)
        assert answer.status_code == 413
        assert str(limit) in answer.json()["detail"]


def test_aliases_do_not_unfold_far(http: httpx.Client) -> None:
    layers = [
        "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)),
    ]
    answer = _dry_run(http, "\n".join(layers).encode(), "application/yaml")
    assert (answer.status_code, answer.json()["errors"][0]["line"]) == (400, 6)
    assert answer.json()["errors"][0]["detail"] == "aliases expand to more than 500,000 values"


@pytest.mark.parametrize("entry", ["0", "[]", "{}", '{"":0}', '"a"', "[[0]]"])
def test_more_keys_and_values_than_a_body_may_hold_are_refused(http: httpx.Client, entry: str) -> None:
    answer = _dry_run(http, f"[{','.join([entry] * MAX_VALUES)}]".encode()[: MAX_BYTES[JSON]])
    assert answer.status_code == 413
    assert f"{MAX_VALUES:,} keys and values" in answer.json()["detail"]


def test_large_bodies_are_handled_one_at_a_time_and_delay_no_other_request(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Semaphore(0), threading.Event()

    def plan_slowly(*_args: object, **_options: object) -> None:
        began.release()
        go_on.wait()
        raise StateConflictError("enough")

    large = json.dumps({**TINY, "description": " " * 9_000, "tags": []}).encode() + b" " * LARGE_BYTES
    monkeypatch.setattr(routes, "service_plan", plan_slowly)
    with ThreadPoolExecutor(POOLED + 3) as clients:
        try:
            waiting = [clients.submit(_dry_run, http, large) for _ in range(POOLED + 2)]
            assert began.acquire(timeout=60)
            assert clients.submit(http.get, "/v1/me").result(timeout=60).status_code == 200
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in waiting} == {409}


def test_a_document_that_holds_itself_is_refused(http: httpx.Client) -> None:
    flaws = _flaws(_dry_run(http, b"&a {name: *a}", "application/yaml"))
    assert flaws[0]["detail"] == "must not be nested deeper than 32 levels"


@pytest.mark.parametrize(
    ("text", "pointer", "detail"),
    [
        ('{"rounds": NaN}', "/rounds", "must be a finite number, not nan"),
        ('{"local": {"lr": 1e999}}', "/local/lr", "must be a finite number, not inf"),
        ('{"name": "\\u0000"}', "/name", "must not contain NUL or unpaired surrogates"),
        ('{"tags": ["\\ud800"]}', "/tags/0", "must not contain NUL or unpaired surrogates"),
        ('{"\\u0000": 1}', "", "keys must be strings"),
    ],
)
def test_values_that_no_database_takes_are_pointed_at(
    http: httpx.Client, text: str, pointer: str, detail: str
) -> None:
    assert _flaws(_dry_run(http, text.encode())) == [{"pointer": pointer, "detail": detail}]


def test_no_more_than_a_hundred_flaws_are_listed(http: httpx.Client) -> None:
    assert len(_flaws(_dry_run(http, json.dumps({str(n): n for n in range(500)}).encode()))) == 100


@pytest.mark.parametrize("body", [b"null", b"[]", b'"text"', b"1"])
def test_a_body_that_is_no_object_is_told_so(http: httpx.Client, body: bytes) -> None:
    (flaw,) = _flaws(_dry_run(http, body))
    assert flaw["pointer"] == ""


@pytest.mark.parametrize("entry", ["0,", "{},", "{a: },"])
def test_yaml_of_too_many_parts_is_refused_with_the_place_and_the_way_out(
    http: httpx.Client, entry: str
) -> None:
    body = f"[{entry * (MAX_BYTES[YAML] // len(entry) - 1)}]".encode()
    answer = _dry_run(http, body, "application/yaml")
    (flaw,) = answer.json()["errors"]
    assert (answer.status_code, flaw["line"]) == (400, 1)
    assert f"{MAX_YAML_PARTS:,}" in flaw["detail"]
    assert "JSON" in flaw["detail"]


def test_yaml_of_90000_keys_is_refused_before_it_is_read_to_its_end(http: httpx.Client) -> None:
    """At the entry that is too much."""
    body = "".join(f"k{number}:\n" for number in range(90_000)).encode()
    answer = _dry_run(http, body, "application/yaml")
    (flaw,) = answer.json()["errors"]
    assert answer.status_code == 400
    assert "send it as JSON" in flaw["detail"]
    assert flaw["line"] <= MAX_YAML_PARTS / 2


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
    expected = {
        "/algorithm/kind": (4, 13),
        "/local/lr": (6, 3),
        "/local/batchsize": (7, 3),
        "/seeds/1": (8, 12),
        "/rounds": (1, 1),
    }
    assert places == expected


def test_errors_that_only_the_whole_document_shows_have_a_place_too(http: httpx.Client) -> None:
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
        (b'{"a": 1,\n "a": 2}', "application/json", (2, 2)),
        (b'{"a": {"b": 1}, "c": [\n{"a": {"b": 1,\t"b": 1}}]}', "application/json", (2, 16)),
    ],
)
def test_unreadable_parts_of_a_document_are_pointed_at(
    http: httpx.Client, body: bytes, media_type: str, place: tuple[int, int]
) -> None:
    (flaw,) = _dry_run(http, body, media_type).json()["errors"]
    assert (flaw["pointer"], flaw["line"], flaw["column"]) == ("", *place)


@pytest.mark.parametrize(("right", "pointer"), [(0, "/seeds/0"), (100, "/seeds/100")])
def test_first_wrong_entry_of_a_list_is_told(http: httpx.Client, right: int, pointer: str) -> None:
    flaws = _flaws(
        _dry_run(http, json.dumps({**TINY, "seeds": [*range(right), "x", "y"], "rounds": 0}).encode())
    )
    assert [flaw["pointer"] for flaw in flaws] == ["/rounds", pointer]


def test_a_block_may_have_so_many_fields(http: httpx.Client) -> None:
    flaws = _flaws(_dry_run(http, json.dumps({"sweep": {str(n): [1] for n in range(10_001)}}).encode()))
    assert flaws == [{"pointer": "/sweep", "detail": "a mapping may have at most 10,000 fields, not 10,001"}]


# Models by import path: refused or taken by the operator's patterns, and never imported by the API process.

MODEL: Document = {"kind": "import", "path": "ourlab.networks:small", "parameters": 1_234}
OWN: Document = SYNTHETIC | {"problem": {**SYNTHETIC["problem"], "model": MODEL}}


@pytest.fixture
def allowing(settings: Settings, admin_key: str) -> Iterator[httpx.Client]:
    """A client of a service that allows models of one package."""
    app = application(settings.model_copy(update={"models_allowed": ("ourlab.*",)}))
    with calling(app, admin_key) as client:
        yield client


@pytest.mark.parametrize("dry_run", [True, False])
def test_without_leave_there_are_none(http: httpx.Client, dry_run: bool) -> None:
    overrides = {"preset": "demo", "overrides": {"problem": {"model": MODEL}}}
    for document, pointer in ((OWN, "/problem/model/path"), (overrides, "/overrides/problem/model/path")):
        answer = http.post("/v1/experiments", params={"dry_run": dry_run}, json=document)
        assert answer.status_code == 422
        (flaw,) = answer.json()["errors"]
        assert flaw == {
            "pointer": pointer,
            "detail": (
                "models by import path are disabled; the operator can enable them with FEDQ_MODELS_ALLOWED"
            ),
        }


def test_with_leave_estimates_go_by_the_declared_parameters(allowing: httpx.Client) -> None:
    (arm,) = allowing.post("/v1/experiments", params={"dry_run": True}, json=OWN).json()["arms"]
    assert arm["parameters"] == 1_234
    assert allowing.post("/v1/experiments", json=OWN).status_code == 201
    foreign = OWN | {"sweep": {"problem.model.path": ["ourlab.networks:small", "theirlab.networks:small"]}}
    assert "theirlab.networks:small does not match" in allowing.post("/v1/experiments", json=foreign).text


SUBMIT = """
import sys
from pathlib import Path
from api.app import create_app
from fedcore.platform.store import upgrade
from fedcore.settings import Settings
from tests.support.access import key_for
from tests.support.asgi import calling
from yaml import safe_load
settings = Settings(_env_file=None, home=Path(sys.argv[1]), models_allowed="ourlab.*")
upgrade(settings.database)
with calling(create_app(settings), key_for(settings.database)) as http:
    print(http.post("/v1/experiments", json=safe_load(sys.argv[2])).status_code)
print(*sorted({"ourlab", "torch"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_the_api_process_imports_neither_the_model_nor_a_tensor_library(tmp_path: Path) -> None:
    (tmp_path / "ourlab").mkdir()
    (tmp_path / "ourlab" / "networks.py").write_text("raise SystemExit('imported')")
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SUBMIT}",
        str(tmp_path),
        str(OWN),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    status, imported = done.stdout.splitlines()[-2:]
    assert (status, imported) == ("201", "")
