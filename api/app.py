"""The service: `uvicorn --factory api.app:create_app --http h11 --h11-max-incomplete-event-size 65536`."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from api import problems, web
from api.access.auth import Doorkeeper
from api.access.deeds import Refusals
from api.access.rates import Rates
from api.access.shields import Shields
from api.bodies.timeout import BodyTimeout
from api.bodies.uploads import UploadSlots
from api.drawing.gate import DrawingGate
from api.intake import Intake
from api.live.feed import Feed
from api.live.seats import Seats
from api.openapi import document
from api.probes import Prober
from api.routes import (
    audits,
    catalog,
    claims,
    compare,
    datasets,
    deliveries,
    events,
    experiments,
    health,
    imports,
    keys,
    lifecycle,
    operations,
    presets,
    repeating,
    reports,
    results,
    runs,
    search,
    theory,
    webhooks,
)
from api.telemetry import logs, metrics
from api.wakeups import Waker
from fedcore.platform import tracing, watchdog
from fedcore.platform.logging import configure
from fedcore.platform.storage import open_storage
from fedcore.platform.store import open_database
from fedcore.platform.store.database import POOLED
from fedcore.platform.version import release
from fedcore.settings import Settings
from fedcore.settings import settings as process_settings

KEYED = (
    *(
        experiments,
        lifecycle,
        runs,
        results,
        theory,
        compare,
        claims,
        reports,
        repeating,
        search,
        events,
        datasets,
        imports,
        presets,
        catalog,
    ),
    *(operations, webhooks, deliveries, keys, audits),
)
"""What needs a key."""
DESCRIPTION = """
Runs federated-learning experiments. An **experiment** is one submitted specification; an **arm** is one point of its sweep; a **run** is
one arm with one seed; a **round** is one communication round of a run. Arms that share a seed see the same cohorts, stragglers and
mini-batches, so they are compared pairwise.

Times are UTC in ISO 8601. Errors are `application/problem+json` (RFC 9457); `errors` points at each culprit in the request.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application, with the settings of this process unless others are given; connects to nothing until it is asked."""
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
        telemetry={"metrics": False, "logs": False, "operation_spans": False, "auto_configure": False, "exclude": logs.is_probe},
    )
    app.state.settings = settings
    app.state.database = open_database(settings.database)
    app.state.doorkeeper = Doorkeeper(app.state.database)
    app.state.rates = Rates(settings)
    app.state.seats = Seats(settings.streams_max)
    app.state.storage = open_storage(settings.storage)
    app.state.intake = Intake(app.state.database)
    app.state.feed = Feed(app.state.database)
    app.state.metrics = metrics.Metrics()
    app.state.upload_gate = CapacityLimiter(1)
    app.state.document_gate = CapacityLimiter(1)
    app.state.drawing_gate = DrawingGate()
    app.state.upload_slots = UploadSlots()
    app.state.prober = Prober()
    app.state.waker = Waker(settings.broker)
    for module in KEYED:
        app.include_router(module.router, responses=problems.responses(401, 403, 429, 500, 503))
    for module in (health, metrics):
        app.include_router(module.router, responses=problems.responses(500, 503))
    problems.install(app)
    web.install(app)
    document.install(app)
    app.add_middleware(BodyTimeout)
    app.add_middleware(problems.Unexpected)
    app.add_middleware(Shields)
    app.add_middleware(Refusals, database=app.state.database)
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
    app.state.database.close()
    resetting.cancel()


async def _reset_watchdog() -> None:
    """From the event loop: an API whose loop is blocked answers nobody."""
    reset = watchdog.resetter()
    while True:
        reset()
        await asyncio.sleep(watchdog.PERIOD_S)
