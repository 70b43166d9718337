"""The client of a command, and shell completion with it.

Completion is empty when the service does not answer within a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.errors import SettingsError
from fedcore.visible_text import visible
from fedq.cli.lazy import clients

if TYPE_CHECKING:
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


def choose(key: str | None) -> None:
    """Store the options given before the command."""
    _key.set(key)


def chosen_key() -> str | None:
    """The key given before the command."""
    return _key.get()


def connect(**options: Any) -> Client:
    """A client with the key of this command."""
    return clients.Client(api_key=_key.get(), **options)


PATIENCE_S = 3.0
MOST = 50

Choices = list[tuple[str, str]]
"""Values, each with a short description."""


def complete_experiments(incomplete: str) -> Choices:
    """The newest experiments, by id."""
    return _asked(
        lambda client: [
            (found.id, f"{found.name}, {found.status}") for found in islice(client.experiments(), MOST)
        ],
        incomplete,
    )


def complete_presets(incomplete: str) -> Choices:
    """The presets of the service."""
    return _asked(lambda client: [(preset.name, preset.title) for preset in client.presets()], incomplete)


def complete_blocks(incomplete: str) -> Choices:
    """The blocks of a specification with several kinds."""
    return _asked(
        lambda client: [(block.path, f"{len(block.kinds)} kinds") for block in client.catalogue().blocks],
        incomplete,
    )


def complete_kinds(incomplete: str) -> Choices:
    """Settings that choose the kind of a block, `PATH.kind=KIND`, kinds of installed packages
    included.
    """
    return _asked(
        lambda client: [
            (f"{block.path}.kind={kind.kind}", kind.description.partition("\n")[0])
            for block in client.catalogue().blocks
            for kind in block.kinds
        ],
        incomplete,
    )


def complete_metrics(incomplete: str) -> Choices:
    """Measures that the service knows, measures of installed packages included."""
    return _asked(lambda client: [(name, "") for name in client.catalogue().measures], incomplete)


def complete_arms(incomplete: str) -> Choices:
    """The arms of the experiment already on the command line."""
    # The parser gives up at an option without its value, so the line itself is searched: bash's, or
    # that of the other shells.
    found = re.search(
        r"\bexp_[0-9a-z]+|@last\b", os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    )
    if found is None:
        return []
    return _asked(
        lambda client: [(arm.name, f"arm {arm.index}") for arm in client.experiment(found[0]).arms],
        incomplete,
    )


def _asked(ask: Callable[[Client], Choices], incomplete: str) -> Choices:
    try:
        with connect(patience_s=0, timeout_s=PATIENCE_S) as client:
            return [
                (value, visible(about))
                for value, about in ask(client)
                if value.startswith(incomplete) and value == visible(value)
            ]
    except (clients.ClientError, SettingsError):
        return []
