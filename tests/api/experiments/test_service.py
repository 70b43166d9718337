"""Estimates of a dry run: time, workers and obstacles, on both databases."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import select

from fedcore.platform.access import Scope
from fedcore.platform.store import Database, workers
from fedcore.platform.store.tables import RunRecord
from fedcore.settings import Settings
from fedq.planning.seconds import SPREAD
from tests.builders.claims import claim, commit, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS, Document
from tests.builders.transactions import write
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


def test_the_time_follows_from_the_rates_of_runs_of_the_kind(http: httpx.Client, rows: Database) -> None:
    unknown = _plan(http)
    assert (unknown["seconds_low"], unknown["seconds_high"]) == (None, None)
    kind = "quadratic, engine auto"
    assert unknown["seconds_source"] == f"no run of this kind ({kind}) has been seen on this service yet"
    submit_over_http(http)
    commit(rows, claim(rows), [report(1, seconds=0.3)])
    # One of three rounds took 0.3 s.
    once, six_times = _plan(http), _plan(http, TWO_ARMS)
    assert once["seconds_low"] == pytest.approx(0.9 / SPREAD)
    assert once["seconds_high"] == pytest.approx(0.9 * SPREAD)
    assert six_times["seconds_high"] == pytest.approx(6 * once["seconds_high"])
    assert once["seconds_source"] == f"1 recent run of {kind}, on this service"


def test_runs_of_others_are_not_told_of(app: FastAPI, http: httpx.Client, rows: Database) -> None:
    submit_over_http(http)
    commit(rows, claim(rows), [report(1, seconds=0.3)])
    key = http.post("/v1/keys", json={"owner": "bob", "scope": Scope.SUBMIT}).json()["key"]
    with calling(app, key) as bob:
        plan = _plan(bob)
        assert plan["seconds_low"] is None
        assert "has been seen in your experiments on this service yet" in plan["seconds_source"]


def test_a_study_stores_the_work_of_all_its_trials(http: httpx.Client, rows: Database) -> None:
    space = {"local.lr": {"kind": "float", "low": 0.01, "high": 0.1}}
    search = {"kind": "study", "metric": "objective", "mode": "min", "trials": 3, "space": space}
    submit_over_http(http, {**TINY, "search": search})
    with rows.reading() as session:
        stored = session.execute(select(RunRecord.work_kind, RunRecord.work)).all()
    assert len(set(stored)) == 1
    assert (len(stored), stored[0].work > 0) == (3, True)


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


def test_refusals_by_a_quota_are_told_in_a_dry_run(
    app: FastAPI, settings: Settings, http: httpx.Client, rows: Database
) -> None:
    _seen(rows, "worker-1")
    key = http.post("/v1/keys", json={"owner": "bob", "scope": Scope.SUBMIT, "max_waiting_runs": 6}).json()[
        "key"
    ]
    with calling(app, key) as bob:
        assert _plan(bob, TWO_ARMS)["warnings"] == []
        submit_over_http(bob)
        assert _plan(bob, TWO_ARMS)["warnings"] == [
            (
                "would be rejected: quota max_waiting_runs exceeded: 7 queued or paused runs, limit 6;"
                " cancel some or wait"
            )
        ]
        assert bob.post("/v1/experiments", json=TWO_ARMS).status_code == 403
