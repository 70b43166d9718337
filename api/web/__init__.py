"""Pages for people: HTML over the same functions and rules that `/v1` has, with scripts and styles that are served from here alone."""

from fastapi import FastAPI

from api.web import assets, compare, downloads, entry, errors, experiment, keys, listing, queue, run, submit, webhooks
from api.web.shared import Shared

ROUTERS = (
    *(listing.router, experiment.router, run.router, downloads.router, compare.router),
    *(submit.router, queue.router, keys.router, webhooks.router, entry.router),
)


def install(app: FastAPI) -> None:
    """Give `app` its pages; after `problems.install`, whose answers browsers then get as pages."""
    assets.install(app)
    app.state.listings = Shared[listing.Shown](listing.POLLED_S)
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
