"""Browsers without a browser: clients of the application that carry their key as a cookie."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.settings import Settings
from tests.api.conftest import admin_key, app, http, rows, settings
from tests.support.access import key_for
from tests.support.asgi import calling

__all__ = ["admin_key", "app", "http", "rows", "settings"]

BROWSER = {"Accept": "text/html,application/xhtml+xml", "Sec-Fetch-Site": "same-origin"}


@contextmanager
def browsing(app: FastAPI, key: str | None = None) -> Iterator[httpx.Client]:
    """A browser; with a key, one that has signed in."""
    with calling(app) as client:
        client.headers.update(BROWSER)
        if key is not None:
            assert client.post("/sign-in", data={"key": key}).status_code == 303
        yield client


@pytest.fixture
def stranger(app: FastAPI) -> Iterator[httpx.Client]:
    """A browser that has not signed in."""
    with browsing(app) as client:
        yield client


@pytest.fixture
def browser(app: FastAPI, admin_key: str) -> Iterator[httpx.Client]:
    """The browser of an administrator."""
    with browsing(app, admin_key) as client:
        yield client


@pytest.fixture
def ann(app: FastAPI, settings: Settings) -> Iterator[httpx.Client]:
    """The browser of somebody who may submit."""
    with browsing(app, key_for(settings.database, "ann", Scope.SUBMIT)) as client:
        yield client
