"""Fixtures of the service for webhooks."""

from tests.api.conftest import admin_key, ann, app, browser, browsing, http, rows, settings, stranger

__all__ = ["admin_key", "ann", "app", "browser", "browsing", "http", "rows", "settings", "stranger"]
