"""`fedq migrate`: create or upgrade the database schema."""

import typer

from fedcore.settings import settings
from fedq.cli.failures import ExitCode, complain
from fedq.cli.terminal import AsJson, tell


def migrate(as_json: AsJson = False) -> None:
    """Upgrade the database at FEDQ_DATABASE_URL to the current schema. `fedq up` does this
    automatically.
    """
    from fedcore.platform.store import UNAVAILABLE, upgrade

    try:
        upgrade(settings().database)
    except UNAVAILABLE as error:
        complain(f"the database is unavailable: {error}")
        raise typer.Exit(ExitCode.UNREACHABLE) from error
    tell(None, as_json=as_json, migrated=True)
