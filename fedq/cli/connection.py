"""The client of a command, with the key given on the command line."""

from contextvars import ContextVar
from typing import Annotated, Any

import typer

from fedq.client import Client

Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help=(
            "API key (default: FEDQ_API_KEY, which other users cannot see in the process list, or the"
            " embedded stack's key)."
        ),
    ),
]
_key: ContextVar[str | None] = ContextVar("key", default=None)


def choose(key: Key = None) -> None:
    """Store the options given before the command."""
    _key.set(key)


def connect(**options: Any) -> Client:
    """A client with the key of this command."""
    return Client(api_key=_key.get(), **options)
