"""The pages for people, put together."""

from fastapi import FastAPI

from api.experiments import list_pages, submit_pages
from api.experiments import pages as experiments_pages
from api.experiments.list_pages import TtlCache
from api.keys import pages as keys_pages
from api.queue import pages as queue_pages
from api.results import download_pages
from api.results import pages as results_pages
from api.runs import pages as runs_pages
from api.web import assets, errors, sign_in
from api.webhooks import pages

ROUTERS = (
    *(
        list_pages.router,
        experiments_pages.router,
        runs_pages.router,
        download_pages.router,
        results_pages.router,
    ),
    *(submit_pages.router, queue_pages.router, keys_pages.router, pages.router, sign_in.router),
)


def install(app: FastAPI) -> None:
    """Give `app` its pages; after `problems.install`, whose answers browsers then get as pages."""
    assets.install(app)
    app.state.listings = TtlCache[list_pages.ListPage](list_pages.POLLED_S)
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
