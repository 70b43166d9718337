"""`fedq key create`, `list`, `show`, `edit`, `revoke`; `fedq me`."""

from datetime import UTC, datetime, timedelta
from getpass import getuser
from itertools import islice
from socket import gethostname
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from api.cli import views
from api.cli.assignments import overrides
from api.cli.connection import connect
from api.cli.failures import ExitCode, complain
from api.cli.terminal import AsJson, show, stderr, tell
from api.schemas import Key, KeyEdit, KeyRequest
from fedcore.access import Scope
from fedcore.private import make_private_folder
from fedcore.settings import settings

Checked = TypeVar("Checked", KeyRequest, KeyEdit)

Owner = Annotated[str, typer.Argument(metavar="OWNER", help="Whose things the key makes and sees; an owner may have several keys.")]
OfScope = Annotated[Scope, typer.Option("--scope", help="What it allows; each includes those before it.")]
Name = Annotated[str, typer.Option(metavar="NAME", help="What it is for.")]
Days = Annotated[int | None, typer.Option("--days", min=1, max=36_500, help="It ends after so many days; absent, when it is revoked.")]
MaxRuns = Annotated[int | None, typer.Option(min=0, metavar="N", help="So many of its runs may be queued or paused at a time.")]
MaxRunning = Annotated[int | None, typer.Option(min=0, metavar="N", help="So many of its runs may be running at a time; others wait.")]
MaxBytes = Annotated[int | None, typer.Option(min=0, metavar="N", help="So many bytes its uploaded data sets may take.")]
MaxSeconds = Annotated[float | None, typer.Option(min=0, metavar="S", help="After so many seconds of rounds it may start no more.")]
Assignments = Annotated[
    list[str], typer.Option("--set", metavar="FIELD=VALUE", help="What to change, as in max_running_runs=4; may be given again.")
]
Direct = Annotated[
    bool, typer.Option("--direct", help="Write to the database of FEDQ_DATABASE_URL or FEDQ_HOME, as for the first key of a service.")
]
Limit = Annotated[int, typer.Option(min=1, help="List at most so many, the newest.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id.")]


def create(  # noqa: PLR0913, PLR0917 - an option each
    owner: Owner,
    scope: OfScope = Scope.SUBMIT,
    name: Name = "",
    days: Days = None,
    max_waiting_runs: MaxRuns = None,
    max_running_runs: MaxRunning = None,
    max_stored_bytes: MaxBytes = None,
    max_compute_seconds: MaxSeconds = None,
    direct: Direct = False,
    as_json: AsJson = False,
) -> None:
    """Make an API key and print it, this once: what is kept of it proves it, but does not tell it."""
    quota = {
        "max_waiting_runs": max_waiting_runs,
        "max_running_runs": max_running_runs,
        "max_stored_bytes": max_stored_bytes,
        "max_compute_seconds": max_compute_seconds,
    }
    wanted = _checked(KeyRequest, owner=owner, scope=scope, name=name, expires_at=_end(days), **quota)
    if direct:
        key = _create_direct(wanted)
    else:
        with connect() as client:
            key = client.create_key(wanted).key
    if not as_json:
        stderr().print(f"A key of scope {scope} for {owner}; it is not shown again:", markup=False)
    tell(key, as_json=as_json, key=key, owner=owner, scope=scope)


def listing(limit: Limit = 50, as_json: AsJson = False) -> None:
    """List API keys, newest first, revoked ones too."""
    with connect() as client:
        show(list(islice(client.keys(), limit)), views.keys, as_json=as_json)


def showing(key: KeyId, as_json: AsJson = False) -> None:
    """Show an API key, and how much of its quotas is used."""
    with connect() as client:
        show(client.key(key), views.standing, as_json=as_json)


def edit(key: KeyId, assignments: Assignments, as_json: AsJson = False) -> None:
    """Change an API key: its scope, name, expires_at, max_waiting_runs, max_running_runs, max_stored_bytes or max_compute_seconds.

    null takes an end or a limit away.
    """
    with connect() as client:
        show(client.edit_key(key, _checked(KeyEdit, **overrides(assignments))), views.key, as_json=as_json)


def revoke(key: KeyId, as_json: AsJson = False) -> None:
    """End an API key; what it made stays with its owner."""
    with connect() as client:
        show(client.revoke_key(key), _ended, as_json=as_json)


def me(as_json: AsJson = False) -> None:
    """Show who the service takes you for, and what your key allows."""
    with connect() as client:
        show(client.me(), views.standing, as_json=as_json)


def app() -> typer.Typer:
    """The commands."""
    made = typer.Typer(help="Make, list, change and revoke API keys.", no_args_is_help=True)
    for name, command in (("create", create), ("list", listing), ("show", showing), ("edit", edit), ("revoke", revoke)):
        made.command(name)(command)
    return made


def _create_direct(wanted: KeyRequest) -> str:
    """A key, written to the database without asking a service."""
    from fedcore.store import UNAVAILABLE, audit, keys, open_database, upgrade
    from fedcore.store.quotas import Quota

    configured = settings()
    quota = Quota(wanted.max_waiting_runs, wanted.max_running_runs, wanted.max_stored_bytes, wanted.max_compute_seconds)
    if configured.database_url is None:
        make_private_folder(configured.home)
    try:
        upgrade(configured.database)
        with open_database(configured.database).transaction() as session:
            record, token = keys.create(
                session, owner=wanted.owner, scope=wanted.scope, name=wanted.name, expires_at=wanted.expires_at, quota=quota
            )
            audit.record(session, audit.Deed("fedq key create --direct", record.id, 201, getuser(), "", gethostname()))
    except UNAVAILABLE as error:
        complain(f"the database does not answer: {error}")
        raise typer.Exit(ExitCode.UNREACHABLE) from error
    return token.text


def _end(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


def _checked(model: type[Checked], **fields: Any) -> Checked:
    try:
        return model(**fields)
    except ValidationError as error:
        for flaw in error.errors():
            complain(f"{flaw['loc'][0]}: {flaw['msg']}, not {flaw['input']!r}")
        raise typer.Exit(ExitCode.REFUSED) from error


def _ended(key: Key) -> str:
    return f"{key.id} was revoked at {key.revoked_at:{views.TIME}} UTC"
