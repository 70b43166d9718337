"""`/metrics`: counters of this process, and queues, runs and workers of the database, for
Prometheus.

Of several processes behind one port each counts for itself, and a scrape reaches any of them. If
they share a folder (PROMETHEUS_MULTIPROC_DIR), each returns the counts of all of them.
"""

import os
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import structlog
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.types import Scope

from api.http.dependencies import AppStateDep
from fedcore.platform.status import Status
from fedcore.platform.store import UNAVAILABLE, Database, counters, service_metrics
from fedcore.platform.store.service_metrics import EndedRuns, RunGroup, ServiceSnapshot
from fedcore.platform.store.tables import WorkerRecord
from fedcore.platform.version import find_release

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
LATENCIES_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EXAMPLE = 'fedq_runs{queue="default",status="queued"} 12.0\n'

router = APIRouter(tags=["operations"])
log = structlog.stdlib.get_logger("fedq.api")


class Metrics(Collector):
    """Counters of this process. Changes in place."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "fedq_http_request_seconds",
            "Requests by the seconds until their answer began.",
            ["method", "route", "status"],
            buckets=LATENCIES_S,
            registry=self._registry,
        )
        self.unavailable = Counter(
            "fedq_database_unavailable",
            "Requests answered with 503 since the database did not answer.",
            registry=self._registry,
        )
        self.ended_runs = EndedRuns()
        ProcessCollector(registry=self._registry)

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request under the path template of its route."""
        method, route = scope["method"], getattr(scope.get("route"), "path", "unmatched")
        self._requests.labels(method if method in METHODS else "other", route, status).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this process, or of all that share its folder."""
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            shared: Iterable[Metric] = MultiProcessCollector(CollectorRegistry()).collect()  # type: ignore[no-untyped-call]
            return shared
        return self._registry.collect()


class _Scrape(Collector):
    """Metrics of one scrape."""

    def __init__(self, *parts: Iterable[Metric]) -> None:
        self._parts = parts

    def collect(self) -> Iterable[Metric]:
        return chain(*self._parts)


DESCRIBED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"example": EXAMPLE}}}}


@router.get(
    "/metrics", response_class=PlainTextResponse, responses=DESCRIBED, summary="Metrics for Prometheus"
)
def read_service_metrics(state: AppStateDep) -> Response:
    """Queues, runs and workers as the database has them now, and the requests of this process.

    Without a database, those alone.
    """
    known = _known(state.database, 3 * state.settings.lease_seconds, state.metrics.ended_runs)
    return Response(generate_latest(_Scrape(state.metrics.collect(), known)), media_type=MEDIA_TYPE)


def _known(database: Database, within_s: float, ended: EndedRuns) -> Iterable[Metric]:
    """Yield the metrics that the database provides; without it, that it is away."""
    try:
        with database.reading() as session:
            census = service_metrics.snapshot(session, within_s, ended)
    except UNAVAILABLE as error:
        log.warning("database unavailable", path="/metrics", error=str(error))
        census = None
    yield GaugeMetricFamily("fedq_database_up", "Whether the database answers.", 0 if census is None else 1)
    yield InfoMetricFamily("fedq", "The software.", {"version": find_release()})
    if census is not None:
        yield from _runs(census.groups)
        yield from _workers(census.workers)
        yield from _totals(census.totals)
        yield from _webhooks(census)


def _runs(groups: Sequence[RunGroup]) -> Iterable[Metric]:
    counts = [([group.queue, group.status.value], group.runs) for group in groups]
    yield _gauge("fedq_runs", "Runs by queue and status.", ["queue", "status"], counts)
    ages = [([group.queue], group.longest_s) for group in groups if group.status is Status.QUEUED]
    yield _gauge(
        "fedq_queue_age_seconds", "How long the run has waited that has waited longest.", ["queue"], ages
    )


def _workers(workers: Sequence[WorkerRecord]) -> Iterable[Metric]:
    states = Tally((worker.device, "idle" if worker.run_id is None else "busy") for worker in workers)
    yield _gauge(
        "fedq_workers",
        "Live workers by device and state.",
        ["device", "state"],
        [([*key], n) for key, n in states.items()],
    )
    queues = Tally(queue for worker in workers for queue in worker.queues)
    yield _gauge(
        "fedq_queue_workers",
        "Live workers that serve a queue.",
        ["queue"],
        [([queue], n) for queue, n in queues.items()],
    )


def _totals(totals: dict[str, float]) -> Iterable[Metric]:
    yield CounterMetricFamily("fedq_rounds", "Rounds committed.", totals.get(counters.ROUNDS, 0))
    yield CounterMetricFamily(
        "fedq_claims",
        "Runs taken up by a worker: first attempts, further ones and turns.",
        totals.get(counters.CLAIMS, 0),
    )
    yield CounterMetricFamily(
        "fedq_retention_failures",
        "Attempts to archive or delete an old experiment that failed.",
        totals.get(counters.RETENTION_FAILURES, 0),
    )
    losses = CounterMetricFamily(
        "fedq_claims_lost",
        "Claims that ended badly, so that their run was tried again or failed.",
        labels=["cause"],
    )
    for cause, name in (("error", counters.ERRORS), ("lease", counters.EXPIRIES)):
        losses.add_metric([cause], totals.get(name, 0))
    yield losses
    counts = accumulate(totals.get(counters.slice_buckets(bound), 0) for bound in counters.SLICE_BOUNDS_S)
    bounds = [*map(str, counters.SLICE_BOUNDS_S[:-1]), "+Inf"]
    slices, seconds = list(zip(bounds, counts, strict=True)), totals.get(counters.SLICE_SECONDS, 0)
    yield HistogramMetricFamily(
        "fedq_slice_seconds", "Slices by the seconds that their rounds took.", slices, seconds
    )


def _webhooks(census: ServiceSnapshot) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "fedq_webhook_backlog",
        "Deliveries that wait to be sent, or to be sent again.",
        census.backlog.deliveries,
    )
    yield GaugeMetricFamily(
        "fedq_webhook_backlog_seconds", "How long the oldest of them has waited.", census.backlog.longest_s
    )
    attempts = CounterMetricFamily(
        "fedq_webhook_attempts", "Attempts to deliver, by what came of them.", labels=["outcome"]
    )
    for outcome, name in (("delivered", counters.DELIVERED), ("failed", counters.UNDELIVERED)):
        attempts.add_metric([outcome], census.totals.get(name, 0))
    yield attempts
    yield CounterMetricFamily(
        "fedq_webhook_given_up", "Deliveries that were given up.", census.totals.get(counters.GIVEN_UP, 0)
    )


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for names, value in values:
        family.add_metric(names, value)
    return family
