"""The service that a command talks to, and the key it shows there."""

from contextvars import ContextVar
from typing import Annotated, Any

import typer

from api.client import Client

Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="API key; absent, FEDQ_API_KEY (which others on this machine cannot see), or the embedded stack's own."
    ),
]
_key: ContextVar[str | None] = ContextVar("key", default=None)


def choose(key: Key = None) -> None:
    """Note the options that stand before the command."""
    _key.set(key)


def connect(**options: Any) -> Client:
    """A client with the key of this command."""
    return Client(api_key=_key.get(), **options)
