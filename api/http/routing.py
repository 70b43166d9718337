"""Endpoints as plain functions: each waits for the database in a thread."""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool


class Router(APIRouter):
    """Hands a `def` endpoint to a thread once.

    FastAPI by itself does so twice: it has the answer checked in a thread as well.
    """

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add an endpoint; called by `get`, `post` and the like."""
        super().add_api_route(
            path, endpoint if iscoroutinefunction(endpoint) else _in_thread(endpoint), **options
        )


def _in_thread(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def call(**given: Any) -> Any:
        return await run_in_threadpool(endpoint, **given)

    return call
