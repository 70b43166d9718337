"""The service:
`uvicorn --factory api.app:create_app --http h11 --h11-max-incomplete-event-size 65536`.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from api.audit import routes
from api.datasets import routes as datasets_routes
from api.datasets.service import UploadSlots
from api.events import routes as events_routes
from api.events.feed import Feed
from api.events.routes import StreamLimit
from api.experiments import import_routes, lifecycle_routes
from api.experiments import routes as experiments_routes
from api.experiments.service import SubmissionBatcher
from api.http import health, problems
from api.http.audit_trail import AuditFailuresMiddleware
from api.http.authentication import KeyAuthenticator
from api.http.body_timeout import BodyTimeout
from api.http.drawing_gate import DrawingGate
from api.http.rate_limit import RateLimiter
from api.http.security_headers import SecurityHeadersMiddleware
from api.http.telemetry import logs, metrics
from api.keys import routes as keys_routes
from api.openapi import document
from api.pages import install
from api.presets import catalogue_routes
from api.presets import routes as presets_routes
from api.queue import routes as queue_routes
from api.results import claims_routes, compare_routes, report_routes, reproduction_routes, theory_routes
from api.results import routes as results_routes
from api.runs import routes as runs_routes
from api.search import routes as search_routes
from api.webhooks import delivery_routes
from api.webhooks import routes as webhooks_routes
from api.webhooks.url_validation import UrlValidator
from fedcore.platform import tracing, watchdog
from fedcore.platform.logging import configure
from fedcore.platform.storage import open_storage
from fedcore.platform.store import open_database
from fedcore.platform.store.database import POOLED
from fedcore.platform.version import release
from fedcore.platform.wakeups import WakeupNotifier
from fedcore.settings import Settings
from fedcore.settings import settings as process_settings
from workers.celery_app import send_wakeup

KEYED = (
    *(
        experiments_routes,
        lifecycle_routes,
        runs_routes,
        results_routes,
        theory_routes,
        compare_routes,
        claims_routes,
        report_routes,
        reproduction_routes,
        search_routes,
        events_routes,
        datasets_routes,
        import_routes,
        presets_routes,
        catalogue_routes,
    ),
    *(queue_routes, webhooks_routes, delivery_routes, keys_routes, routes),
)
"""Routes that require an API key."""
DESCRIPTION = """
Runs federated-learning experiments. An **experiment** is one submitted specification; an **arm** is
one point of its sweep; a **run** is one arm with one seed; a **round** is one communication round
of a run. Arms that share a seed see the same cohorts, stragglers and mini-batches, so they are
compared pairwise.

Times are UTC in ISO 8601. Errors are `application/problem+json` (RFC 9457); `errors` lists each
invalid field of the request.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application, with the settings of this process unless others are given.

    Connects to nothing until it is asked.
    """
    settings = settings or process_settings()
    configure(settings, "api")
    tracing.configure("api")
    # Its pages of documentation load nothing from other hosts.
    app = FastAPIOffline(
        title="FedQ",
        summary="Federated-learning experiments as a service.",
        description=DESCRIPTION,
        version=release(),
        lifespan=_lifespan,
        # Spans of requests are FastAPI's own; probes have none, and metrics and logs go other ways.
        telemetry={
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": logs.is_probe,
        },
    )
    app.state.settings = settings
    app.state.database = open_database(settings.database)
    app.state.doorkeeper = KeyAuthenticator(app.state.database)
    app.state.rates = RateLimiter(settings)
    app.state.seats = StreamLimit(settings.streams_max)
    app.state.storage = open_storage(settings.storage)
    app.state.intake = SubmissionBatcher(app.state.database)
    app.state.feed = Feed(app.state.database)
    app.state.metrics = metrics.Metrics()
    app.state.upload_gate = CapacityLimiter(1)
    app.state.document_gate = CapacityLimiter(1)
    app.state.drawing_gate = DrawingGate()
    app.state.upload_slots = UploadSlots()
    app.state.prober = UrlValidator()
    app.state.wakeups = WakeupNotifier(partial(send_wakeup, broker=settings.broker))
    for module in KEYED:
        app.include_router(module.router, responses=problems.responses(401, 403, 429, 500, 503))
    for module in (health, metrics):
        app.include_router(module.router, responses=problems.responses(500, 503))
    problems.install(app)
    install(app)
    document.install(app)
    app.add_middleware(BodyTimeout)
    app.add_middleware(problems.UnhandledErrorMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(AuditFailuresMiddleware, database=app.state.database)
    app.add_middleware(logs.RequestLog, metrics=app.state.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # One thread more would wait for a connection, and keep those that have one from going on.
    to_thread.current_default_thread_limiter().total_tokens = POOLED
    # What was made by now stays: the collector of garbage is to look at what requests make.
    gc.freeze()
    resetting = asyncio.create_task(_reset_watchdog())
    yield
    gc.unfreeze()
    await app.state.feed.close()
    await app.state.rates.close()
    await to_thread.run_sync(app.state.wakeups.close)
    app.state.database.close()
    resetting.cancel()


async def _reset_watchdog() -> None:
    """From the event loop: an API whose loop is blocked answers nobody."""
    reset = watchdog.resetter()
    while True:
        reset()
        await asyncio.sleep(watchdog.PERIOD_S)
