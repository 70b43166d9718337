"""Shell completion of experiments, presets and arms.

Empty when the service does not answer within a second.
"""

import os
import re
from collections.abc import Callable
from itertools import islice

from fedcore.errors import SettingsError
from fedq.cli.connection import connect
from fedq.client import Client, ClientError

PATIENCE_S = 1.0
MOST = 50

Choices = list[tuple[str, str]]
"""Values, each with a short description."""


def experiments(incomplete: str) -> Choices:
    """The newest experiments, by id."""
    return _asked(
        lambda client: [
            (found.id, f"{found.name}, {found.status}") for found in islice(client.experiments(), MOST)
        ],
        incomplete,
    )


def presets(incomplete: str) -> Choices:
    """The presets of the service."""
    return _asked(lambda client: [(preset.name, preset.title) for preset in client.presets()], incomplete)


def arms(incomplete: str) -> Choices:
    """The arms of the experiment already on the command line."""
    # The parser gives up at an option without its value, so the line itself is searched: bash's, or
    # that of the other shells.
    found = re.search(
        r"\bexp_[0-9a-z]+", os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    )
    if found is None:
        return []
    return _asked(
        lambda client: [(arm.name, f"arm {arm.index}") for arm in client.experiment(found[0]).arms],
        incomplete,
    )


def _asked(ask: Callable[[Client], Choices], incomplete: str) -> Choices:
    try:
        with connect(retries=0, timeout_s=PATIENCE_S) as client:
            return [choice for choice in ask(client) if choice[0].startswith(incomplete)]
    except (ClientError, SettingsError):
        return []
