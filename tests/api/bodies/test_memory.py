"""Memory that a body takes is bounded, measured at the process.

The largest documents that make sense are taken.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from api.http.documents import JSON, MAX_BYTES, YAML
from api.openapi.document import BODIES
from tests.builders.specifications import SYNTHETIC, Document, merged
from tests.support.access import bearer
from tests.support.service import Service

JSON_BYTES, YAML_BYTES = MAX_BYTES[JSON], MAX_BYTES[YAML]
MOST_BYTES = 256 << 20
"""More than the largest body that is taken needs, a third of what a few of those that are refused
took.
"""
TIMEOUT_S = 120.0


def _filled(first: bytes, repeated: bytes, last: bytes = b"0]", size: int = JSON_BYTES) -> bytes:
    return first + repeated * ((size - len(first) - len(last)) // len(repeated)) + last


def _within(path: str, entry: bytes, count: int, **beside: str) -> bytes:
    """A document in which a list at a dotted path holds many entries, and its block says something
    else.
    """
    *blocks, field = path.split(".")
    opening = b"".join(b'{"%s":' % block.encode() for block in blocks)
    block = b"".join(b'"%s":"%s",' % (name.encode(), value.encode()) for name, value in beside.items())
    return (
        opening
        + b"{"
        + block
        + b'"%s":[' % field.encode()
        + b",".join([entry] * count)
        + b"]"
        + b"}" * (len(blocks) + 1)
    )


# Made when they are needed: together they take hundreds of megabytes here.
REFUSED: dict[str, Callable[[], bytes]] = {
    **{
        f"JSON: {entry.decode()}, ...": partial(_filled, b"[", entry + b",")
        for entry in (b"[]", b"0", b"{}", b'{"":0}')
    },
    "JSON: deep": partial(_filled, b"", b"[", b"]" * (JSON_BYTES // 2)),
    "JSON: deep again and again": partial(_filled, b"[", b"[" * 40 + b"0" * 900 + b"]" * 40 + b","),
    "JSON: a huge number": partial(_filled, b"", b"1", b""),
    "JSON: huge numbers": partial(_filled, b"[", b"1" * 4_000 + b","),
    "JSON: a long text": partial(_filled, b'{"name": "', b"x", b'"}'),
    "JSON: a long text with a wide character": partial(
        _filled, '{"name": "\N{GRINNING FACE}'.encode(), b"x", b'"}'
    ),
    "JSON: half characters": partial(_filled, b"[", b'"\\ud800",'),
    "JSON: wrong seeds": partial(_within, "seeds", b'"x"', 2_000_000),
    "JSON: wrong tags": partial(_within, "tags", b'"!"', 2_000_000),
    "JSON: wrong steps": partial(_within, "systems.steps.values", b"0", 1_999_000, kind="per_client"),
    "JSON: wrong rounds": partial(_within, "participation.rounds", b'["x"]', 660_000, kind="trace"),
    "JSON: wrong clients": partial(_within, "problem.dataset.clients", b'{"a":1}', 660_000, kind="quadratic"),
    "JSON: arms": partial(_within, "sweep.arms", b'{"a":1}', 660_000),
    **{
        f"YAML: {entry.decode()}, ...": partial(_filled, b"[", entry + b",", size=YAML_BYTES)
        for entry in (b"[]", b"0", b"{a: }", b"a: ")
    },
    "YAML: keys": lambda: b"".join(b"%x:\n" % number for number in range(140_000)),
    "YAML: itself": partial(_filled, b"&a [", b"*a,", size=YAML_BYTES),
}
IN_CI = {"JSON: deep", "JSON: wrong rounds", "YAML: itself"}
"""Cases that are tried before each change; the others are tried every night."""


def _unbounded(schema: Any) -> Iterator[Any]:
    """The lists in a schema of Pydantic's whose entries may all be wrong, each with an error of its
    own.
    """
    match schema:
        case {"type": "tuple", "variadic_item_index": _} if not schema.get("fail_fast"):
            yield schema
        case {"type": "list", "items_schema": entries} if (
            not schema.get("fail_fast") and entries["type"] != "any"
        ):
            # Of a list, unlike a tuple, the length is checked before its entries.
            if schema.get("max_length", inf) > 1_000:
                yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _unbounded(part)


@pytest.mark.parametrize("model", BODIES)
def test_every_list_stops_at_its_first_wrong_entry_or_is_short(model: type[BaseModel]) -> None:
    assert list(_unbounded(model.__pydantic_core_schema__)) == []


@pytest.fixture(scope="module")
def http(running: Service) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=running.url, headers=bearer(running.key), timeout=TIMEOUT_S, trust_env=False
    ) as client:
        yield client


def _memory_bytes(running: Service, field: str) -> int:
    lines = Path(f"/proc/{running.pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _dry_run(
    http: httpx.Client, running: Service, body: bytes, media_type: str
) -> tuple[httpx.Response, int]:
    """The answer, and what the process took at most while it came to it."""
    Path(f"/proc/{running.pid}/clear_refs").write_text("5")
    before = _memory_bytes(running, "VmRSS")
    answer = http.post("/v1/experiments?dry_run=true", content=body, headers={"Content-Type": media_type})
    return answer, _memory_bytes(running, "VmHWM") - before


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in IN_CI else pytest.mark.nightly) for case in REFUSED]
)
def test_a_body_that_is_refused_takes_little_memory(http: httpx.Client, running: Service, case: str) -> None:
    answer, taken = _dry_run(http, running, REFUSED[case](), f"application/{case.partition(':')[0].lower()}")
    assert answer.status_code in (400, 413, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert taken < MOST_BYTES


def _steps() -> dict[str, Any]:
    """The work of a million clients, one by one."""
    return merged(
        SYNTHETIC,
        {
            "problem": {"dataset": {"clients": 1_000_000}},
            "local": {"epochs": None, "steps": 5},
            "systems": {"stragglers": None, "steps": {"kind": "per_client", "values": [5] * 1_000_000}},
        },
    )


def _trace() -> dict[str, Any]:
    """A hundred thousand rounds with fifteen clients each."""
    trace = {"kind": "trace", "rounds": [list(range(15))] * 100_000}
    return {
        **merged(SYNTHETIC, {"problem": {"dataset": {"clients": 15}}, "rounds": 100_000}),
        "participation": trace,
    }


def _quadratics() -> dict[str, Any]:
    """As many numbers in full precision as a body holds."""
    dim, digits = 20, 1 / 3
    matrix = [[1.0 + digits if row == column else digits for column in range(dim)] for row in range(dim)]
    clients = [{"H": matrix, "e": [digits] * dim}] * (JSON_BYTES // (21 * dim * (dim + 1)))
    return {
        "name": "quadratics",
        "problem": {"dataset": {"kind": "quadratic", "clients": clients}},
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.1, "steps": 1},
        "rounds": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "arms"),
    [(_trace, 1), *(pytest.param(made, 100, marks=pytest.mark.nightly) for made in (_steps, _quadratics))],
)
def test_the_largest_specifications_are_taken_and_their_arms_share_what_is_the_same(
    http: httpx.Client, running: Service, made: Any, arms: int
) -> None:
    document = merged(made(), {"sweep": {"local.lr": [0.1 + arm / 1_000 for arm in range(arms)]}})
    answer, taken = _dry_run(http, running, json.dumps(document).encode(), "application/json")
    assert answer.status_code == 200, answer.text
    assert taken < 2 * MOST_BYTES


@pytest.mark.nightly
def test_arms_that_cannot_share_long_lists_are_refused(http: httpx.Client, running: Service) -> None:
    document = merged(_steps(), {"systems": {"stragglers": {"fraction": 0.5, "policy": "drop"}}})
    document["sweep"] = {"systems.stragglers.fraction": [arm / 1_000 for arm in range(1, 1_001)]}
    answer, taken = _dry_run(http, running, json.dumps(document).encode(), "application/json")
    assert answer.status_code == 422
    assert [flaw["pointer"] for flaw in answer.json()["errors"]] == ["/sweep"]
    assert taken < MOST_BYTES


@pytest.mark.slow
def test_an_import_as_large_as_a_body_may_be_is_read(http: httpx.Client) -> None:
    rounds = 115_000
    moment, number = "2026-01-31T12:00:00.123456Z", 1 / 3
    numbers, counts = [number] * rounds, [31_800] * rounds
    rows: Document = dict.fromkeys(("train_loss", "test_loss", "test_accuracy", "seconds"), numbers)
    rows |= dict.fromkeys(("local_steps", "bytes_up", "bytes_down"), counts)
    rows |= {"committed_at": [moment] * rounds, "extra": {"suboptimality": numbers}}
    run = {
        "id": f"run_{'0' * 26}",
        "arm": 0,
        "seed": 0,
        "status": "succeeded",
        "provenance": {},
        "rows": rows,
    }
    experiment = {
        "id": f"exp_{'0' * 26}",
        "name": "large",
        "tags": [],
        "created_at": moment,
        "specification": {},
        "provenance": {},
    }
    file = {
        "format": "fedq-results",
        "version": 1,
        "exported_at": moment,
        "experiment": experiment,
        "runs": [run],
        "digest": "0" * 64,
    }
    body = json.dumps(file, separators=(",", ":")).encode()
    assert 0.9 * JSON_BYTES < len(body) <= JSON_BYTES
    answer = http.post("/v1/imports", content=body)
    # All of it was read, or its digest could not have been found to be another.
    assert [flaw["pointer"] for flaw in answer.json()["errors"]] == ["/digest"]
