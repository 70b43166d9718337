"""Estimates of a dry run: time, workers and obstacles, on both databases."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.platform.store import Database, workers
from fedcore.settings import Settings
from tests.api.histories import TINY, TWO_ARMS, commit, submit
from tests.documents import Document
from tests.platform.store.acts import claim, report, write
from tests.support.asgi import calling

pytestmark = pytest.mark.usefixtures("database_url")


def _plan(http: httpx.Client, document: Document = TINY) -> Document:
    answer = http.post("/v1/experiments", params={"dry_run": True}, json=document)
    assert answer.status_code == 200, answer.text
    plan: Document = answer.json()
    return plan


def _seen(rows: Database, name: str, **about: Any) -> None:
    given: dict[str, Any] = {"host": "here", "pid": 7, "queues": ["default"], "device": "cpu", "run_id": None}
    write(rows, workers.seen, name, **(given | about))


def test_the_time_is_that_of_runs_like_it(http: httpx.Client, rows: Database) -> None:
    assert _plan(http)["seconds"] is None
    submit(http)
    commit(rows, claim(rows), [report(1, local_steps=6, seconds=0.3)])
    once, six_times = _plan(http), _plan(http, TWO_ARMS)
    assert once["seconds"] == pytest.approx(0.05 * once["local_steps"])
    assert six_times["seconds"] == pytest.approx(6 * once["seconds"])


def test_a_search_takes_less(http: httpx.Client, rows: Database) -> None:
    submit(http)
    commit(rows, claim(rows), [report(1, local_steps=6, seconds=0.3)])
    sweep = {"local.lr": [0.1, 0.05, 0.02, 0.01]}
    search = {"kind": "successive_halving", "metric": "objective", "mode": "min", "eta": 2, "min_rounds": 1}
    whole, halved = (
        _plan(http, {**TINY, "sweep": sweep}),
        _plan(http, {**TINY, "sweep": sweep, "search": search}),
    )
    assert halved["seconds"] == pytest.approx(whole["seconds"] * halved["search"]["rounds"] / whole["rounds"])
    assert halved["seconds"] < whole["seconds"]


def test_workers_of_its_queue_are_counted_and_their_memory_is_looked_at(
    http: httpx.Client, rows: Database
) -> None:
    assert (_plan(http)["workers"], len(_plan(http)["warnings"])) == (0, 1)
    _seen(rows, "small", memory_bytes=1_000_000)
    _seen(rows, "elsewhere", queues=["gpu"])
    (warning,) = _plan(http)["warnings"]
    assert warning.startswith(
        "some of the runs would wait: a run needs about 0.3 GB of memory, but workers of the queue 'default'"
        " have at most"
    )
    _seen(rows, "large", memory_bytes=10**10)
    assert (_plan(http)["workers"], _plan(http)["warnings"]) == (2, [])


def test_what_would_be_refused_for_a_quota_is_told_before(
    app: FastAPI, settings: Settings, http: httpx.Client, rows: Database
) -> None:
    _seen(rows, "worker-1")
    key = http.post("/v1/keys", json={"owner": "bob", "scope": Scope.SUBMIT, "max_waiting_runs": 6}).json()[
        "key"
    ]
    with calling(app, key) as bob:
        assert _plan(bob, TWO_ARMS)["warnings"] == []
        submit(bob)
        assert _plan(bob, TWO_ARMS)["warnings"] == [
            "would be rejected: quota max_waiting_runs exceeded: 7 queued or paused runs, limit 6"
        ]
        assert bob.post("/v1/experiments", json=TWO_ARMS).status_code == 403
