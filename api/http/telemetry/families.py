"""The census as Prometheus's families of metrics."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from fedcore.platform.status import Status
from fedcore.platform.store import counters
from fedcore.platform.store.service_metrics import RunGroup, ServiceSnapshot
from fedcore.platform.store.tables import WorkerRecord
from fedcore.platform.version import release


def families(census: ServiceSnapshot) -> list[Metric]:
    """Return the metrics that the database provides."""
    return [
        _up(1),
        _software(),
        *_runs(census.groups),
        *_workers(census.workers),
        *_totals(census.totals),
        *_webhooks(census),
    ]


def away() -> list[Metric]:
    """Return the metrics that remain when the database does not answer."""
    return [_up(0), _software()]


def _up(value: int) -> Metric:
    return GaugeMetricFamily("fedq_database_up", "Whether the database answers.", value)


def _software() -> Metric:
    return InfoMetricFamily("fedq", "The software.", {"version": release()})


def _runs(groups: Sequence[RunGroup]) -> Iterable[Metric]:
    counts = [([group.queue, group.status.value], group.runs) for group in groups]
    yield _gauge("fedq_runs", "Runs by queue and status.", ["queue", "status"], counts)
    ages = [([group.queue], group.longest_s) for group in groups if group.status is Status.QUEUED]
    yield _gauge(
        "fedq_queue_age_seconds", "How long the run has waited that has waited longest.", ["queue"], ages
    )


def _workers(workers: Sequence[WorkerRecord]) -> Iterable[Metric]:
    states = Counter((worker.device, "idle" if worker.run_id is None else "busy") for worker in workers)
    yield _gauge(
        "fedq_workers",
        "Live workers by device and state.",
        ["device", "state"],
        [([*key], n) for key, n in states.items()],
    )
    queues = Counter(queue for worker in workers for queue in worker.queues)
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
