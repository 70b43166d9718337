"""`/metrics`: what Prometheus reads, with a database and without."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedcore.platform.access import Token
from fedcore.platform.store import Database, workers
from fedcore.settings import Settings
from tests.builders.claims import claim, commit, end_runs, lose, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.support.asgi import application, calling

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

SHARED = """
from api.http.metrics import Metrics
from prometheus_client import generate_latest
Metrics().request({"method": "GET"}, 200, 0.003)
print(generate_latest(Metrics()).decode())
"""


def _parsed(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def _scraped(http: httpx.Client) -> Samples:
    answer = http.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    return _parsed(answer.text)


def _value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


@pytest.mark.usefixtures("database_url")
def test_queues_runs_and_workers_are_as_the_database_has_them(http: httpx.Client, rows: Database) -> None:
    submit_over_http(http)
    end_runs(rows, lambda _: [report(1), report(2), report(3, seconds=20.0)], 1)
    submit_over_http(http, {**TINY, "seeds": [0, 1, 2]})
    commit(rows, claim(rows), 2)
    claim(rows, lease_s=-1)
    lose(rows)
    submit_over_http(http, {**TINY, "execution": {"queue": "gpu"}})
    with rows.transaction() as session:
        for worker_id, run_id in (("w1", "run_1"), ("w2", None)):
            workers.seen(
                session, worker_id, host="here", pid=7, queues=["default", "gpu"], device="cpu", run_id=run_id
            )
    samples = _scraped(http)
    for status, runs in (("queued", 2), ("running", 1), ("succeeded", 1)):
        assert _value(samples, "fedq_runs", queue="default", status=status) == runs
    age = _value(samples, "fedq_queue_age_seconds", queue="gpu")
    assert age is not None
    assert 0 <= age < 60
    assert (
        _value(samples, "fedq_workers", device="cpu", state="busy")
        == _value(samples, "fedq_workers", device="cpu", state="idle")
        == 1
    )
    assert _value(samples, "fedq_queue_workers", queue="gpu") == 2
    assert (_value(samples, "fedq_rounds_total"), _value(samples, "fedq_claims_total")) == (5, 3)
    assert (
        _value(samples, "fedq_claims_lost_total", cause="lease"),
        _value(samples, "fedq_claims_lost_total", cause="error"),
    ) == (1, 0)
    buckets = [
        _value(samples, "fedq_slice_seconds_bucket", le=bound)
        for bound in ("0.5", "1.0", "10.0", "30.0", "+Inf")
    ]
    assert buckets == [0, 1, 1, 2, 2]
    assert (_value(samples, "fedq_slice_seconds_count"), _value(samples, "fedq_slice_seconds_sum")) == (
        2,
        22.0,
    )


def test_requests_are_counted_by_the_routes_of_the_interface(http: httpx.Client) -> None:
    for path in ("/v1/runs/run_1", "/v1/runs/run_2", "/nowhere/1", "/nowhere/2"):
        http.get(path)
    http.request("BREW", "/v1/runs/run_1")
    samples = _scraped(http)
    assert (
        _value(
            samples, "fedq_http_request_seconds_count", method="GET", route="/v1/runs/{run_id}", status="404"
        )
        == 2
    )
    assert (
        _value(samples, "fedq_http_request_seconds_count", method="GET", route="unmatched", status="404") == 2
    )
    assert (
        _value(
            samples,
            "fedq_http_request_seconds_count",
            method="other",
            route="/v1/runs/{run_id}",
            status="405",
        )
        == 1
    )


def test_without_a_database_the_process_still_tells_what_it_counts(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, home=tmp_path, database_url=f"sqlite:///{tmp_path / 'empty.db'}")
    with calling(application(settings), Token.of(f"key_{0:026}").text) as http:
        assert http.get("/v1/experiments").status_code == 503
        samples = _scraped(http)
    assert (_value(samples, "fedq_database_up"), _value(samples, "fedq_database_unavailable_total")) == (0, 1)
    assert not any(name == "fedq_runs" for name, _ in samples)


def test_with_a_database_that_is_up(http: httpx.Client) -> None:
    samples = _scraped(http)
    assert (_value(samples, "fedq_database_up"), _value(samples, "fedq_rounds_total")) == (1, 0)


@pytest.mark.slow
def test_processes_that_share_a_folder_count_together(tmp_path: Path) -> None:
    environment = os.environ | {
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    counts = []
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-c", SHARED], env=environment, capture_output=True, text=True, check=True
        ).stdout
        counts.append(
            _value(
                _parsed(told),
                "fedq_http_request_seconds_count",
                method="GET",
                route="unmatched",
                status="200",
            )
        )
    assert counts == [1, 2]
