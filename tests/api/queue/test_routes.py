"""Queues and workers, on both databases."""

import httpx
import pytest

from fedcore.platform.store import Database, workers
from tests.builders.claims import claim, commit, end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY

pytestmark = pytest.mark.usefixtures("database_url")


def test_queues_hold_what_is_not_finished(http: httpx.Client, rows: Database) -> None:
    submit_over_http(http)
    end_runs(rows, lambda _: [report(1), report(2), report(3)], 1)
    submit_over_http(http, {**TINY, "seeds": [0, 1]})
    commit(rows, claim(rows), [report(1)])
    paused = submit_over_http(http, {**TINY, "execution": {"queue": "gpu"}})
    http.post(f"/v1/experiments/{paused['id']}/pause")
    assert http.get("/v1/queue").json()["items"] == [
        {
            "queue": "default",
            "queued": 1,
            "running": 1,
            "waiting": 0,
            "paused": 0,
            "too_large": 0,
            "rounds_left": 5,
        },
        {
            "queue": "gpu",
            "queued": 0,
            "running": 0,
            "waiting": 0,
            "paused": 1,
            "too_large": 0,
            "rounds_left": 0,
        },
    ]


def test_a_worker_is_listed_while_it_reports(http: httpx.Client, rows: Database) -> None:
    submit_over_http(http)
    held = claim(rows)
    with rows.transaction() as session:
        workers.seen(
            session, "worker-1", host="here", pid=7, queues=["default"], device="cpu", run_id=held.run_id
        )
        workers.seen(session, "worker-2", host="there", pid=8, queues=["gpu"], device="cuda:0", run_id=None)
    first, second = http.get("/v1/workers").json()["items"]
    assert (first["id"], first["host"], first["queues"], first["device"], first["run_id"]) == (
        "worker-1",
        "here",
        ["default"],
        "cpu",
        held.run_id,
    )
    assert second["run_id"] is None
    with rows.transaction() as session:
        workers.gone(session, "worker-1")
    assert [worker["id"] for worker in http.get("/v1/workers").json()["items"]] == ["worker-2"]


def test_a_run_says_what_it_waits_for_until_there_is_a_worker_with_the_memory_it_needs(
    http: httpx.Client, rows: Database
) -> None:
    made = submit_over_http(http)

    def seen(worker: str, memory_bytes: int | None) -> tuple[str | None, int]:
        """A worker reports; what the run misses then, and how many of the queue are too large."""
        about = {"host": "here", "pid": 7, "queues": ["default"], "device": "cpu", "run_id": None}
        with rows.transaction() as session:
            workers.seen(session, worker, memory_bytes=memory_bytes, **about)
        return waits_for(), http.get("/v1/queue").json()["items"][0]["too_large"]

    def waits_for() -> str | None:
        (run,) = http.get(f"/v1/experiments/{made['id']}/runs").json()["items"]
        assert http.get(f"/v1/runs/{run['id']}").json() == run
        assert run["memory_bytes"] > 200_000_000
        told: str | None = run["waits_for"]
        return told

    assert waits_for() == "no worker currently serves the queue 'default'"
    told, too_large = seen("small", 100_000_000)
    assert told is not None
    assert told.startswith(
        "needs about 0.3 GB of memory, but workers of the queue 'default' have at most 0.1 GB: start a larger"
        " worker"
    )
    assert too_large == 1
    assert seen("large", 2_000_000_000) == (None, 0)
    assert seen("large", None) == (None, 0)
    assert http.get("/v1/workers").json()["items"][1]["memory_bytes"] == 100_000_000
