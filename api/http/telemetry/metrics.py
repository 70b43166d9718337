"""`/metrics`: what this process counts, and what the database knows of queues, runs and workers,
for Prometheus.

Of several processes behind one port each counts for itself, and a scrape reaches any of them. Where
they share a folder (PROMETHEUS_MULTIPROC_DIR), whichever answers tells what all of them have
counted.
"""

import os
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Request, Response
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
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.types import Scope

from api.http.dependencies import Configuration, Store
from api.http.telemetry.families import away, families
from fedcore.platform.store import UNAVAILABLE, Database, service_metrics

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
        ProcessCollector(registry=self._registry)

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request.

        `route` is the path as the interface has it, so that there are as many as endpoints.
        """
        method, route = scope["method"], getattr(scope.get("route"), "path", "unmatched")
        self._requests.labels(method if method in METHODS else "other", route, status).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Those of this process, or of all that share its folder."""
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


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


DESCRIBED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"example": EXAMPLE}}}}


@router.get(
    "/metrics", response_class=PlainTextResponse, responses=DESCRIBED, summary="Metrics for Prometheus"
)
def read_metrics(
    metrics: Annotated[Metrics, Depends(_metrics)], database: Store, settings: Configuration
) -> Response:
    """Queues, runs and workers as the database has them now, and the requests of this process.

    Without a database, those alone.
    """
    known = _known(database, 3 * settings.lease_seconds)
    return Response(generate_latest(_Scrape(metrics.collect(), known)), media_type=MEDIA_TYPE)


def _known(database: Database, within_s: float) -> Iterable[Metric]:
    try:
        with database.reading() as session:
            return families(service_metrics.snapshot(session, within_s))
    except UNAVAILABLE as error:
        log.warning("database unavailable", path="/metrics", error=str(error))
        return away()
