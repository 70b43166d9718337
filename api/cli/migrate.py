"""`fedq migrate`: the database of a service that is put together by hand."""

import typer

from api.cli.failures import ExitCode, complain
from api.cli.terminal import AsJson, tell
from fedcore.settings import settings


def migrate(as_json: AsJson = False) -> None:
    """Bring the database at FEDQ_DATABASE_URL to the present schema; `fedq up` does so by itself."""
    from fedcore.store import UNAVAILABLE, upgrade

    try:
        upgrade(settings().database)
    except UNAVAILABLE as error:
        complain(f"the database does not answer: {error}")
        raise typer.Exit(ExitCode.UNREACHABLE) from error
    tell(None, as_json=as_json, migrated=True)
