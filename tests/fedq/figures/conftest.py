"""Fixtures of the service for figures."""

from tests.api.conftest import admin_key, app, http, rows, settings

__all__ = ["admin_key", "app", "http", "rows", "settings"]
