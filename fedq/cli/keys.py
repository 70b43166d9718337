"""`fedq key create`, `list`, `show`, `edit` and `revoke`; `fedq me` and `audit`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedcore.lazy import pydantic
from fedcore.platform.access import Scope
from fedcore.platform.private_files import make_private_folder
from fedq.cli import views
from fedq.cli.connection import connect
from fedq.cli.experiments import overrides
from fedq.cli.lazy import configuration, schemas, validation_errors
from fedq.cli.terminal import (
    AsJson,
    ExitCode,
    Limit,
    complain,
    show,
    show_newest,
    stderr,
    tell,
    using_database,
)

if TYPE_CHECKING:
    from fedq.schemas import Key, KeyEdit, KeyRequest

Checked = TypeVar("Checked", "KeyRequest", "KeyEdit")

Owner = Annotated[
    str,
    typer.Argument(
        metavar="OWNER", help="Owner of everything created with the key. An owner can have several keys."
    ),
]
OfScope = Annotated[
    Scope, typer.Option("--scope", help="Permissions of the key; each scope includes those before it.")
]
OfCode = Annotated[
    bool, typer.Option("--code", help="Also allow code bundles, which workers run in confined processes.")
]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Purpose of the key.")]
Days = Annotated[
    int | None, typer.Option("--days", min=1, max=36_500, help="Days until the key expires (default: never).")
]
Assignments = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Field to change, e.g. max_running_runs=4; may be repeated."
    ),
]
Quotas = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="QUOTA=VALUE",
        help=(
            "Quota (default: none): max_waiting_runs, max_running_runs, max_stored_bytes or"
            " max_compute_seconds; may be repeated."
        ),
    ),
]
Direct = Annotated[
    bool,
    typer.Option(
        "--direct",
        help=(
            "Write directly to the database of FEDQ_DATABASE_URL or FEDQ_HOME, e.g. to create the first key."
        ),
    ),
]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Key id.")]


def create(
    owner: Owner,
    scope: OfScope = Scope.SUBMIT,
    code: OfCode = False,
    name: Name = "",
    days: Days = None,
    quotas: Quotas = None,
    direct: Direct = False,
    as_json: AsJson = False,
) -> None:
    """Create an API key and print it. It cannot be shown again: the service stores only a hash."""
    fields = {"owner": owner, "scope": scope, "code": code, "name": name, "expires_at": _end(days)}
    wanted = _checked(schemas.KeyRequest, fields | overrides(quotas or []))
    if direct:
        key = _create_direct(wanted)
    else:
        with connect() as client:
            key = client.create_key(wanted).key
    if not as_json:
        stderr().print(f"API key of scope {views.scopes(wanted)} for {wanted.owner}. It is not shown again:")
    tell(key, as_json=as_json, key=key, owner=wanted.owner, scope=wanted.scope)


def listing(limit: Limit = 50, as_json: AsJson = False) -> None:
    """List API keys, including revoked ones, newest first."""
    with connect() as client:
        show_newest(client.keys(), limit, views.keys, as_json=as_json)


def showing(key: KeyId, as_json: AsJson = False) -> None:
    """Show an API key and its use of quotas."""
    with connect() as client:
        show(client.key(key), views.standing, as_json=as_json)


def edit(key: KeyId, assignments: Assignments, as_json: AsJson = False) -> None:
    """Change scope, name, expires_at or quotas of an API key.

    Quotas are max_waiting_runs, max_running_runs, max_stored_bytes and max_compute_seconds.
    Set a field to null to remove an expiry date or a limit.
    """
    with connect() as client:
        changes = _checked(schemas.KeyEdit, overrides(assignments))
        show(client.edit_key(key, changes), views.key, as_json=as_json)


def revoke(key: KeyId, as_json: AsJson = False) -> None:
    """Revoke an API key. Everything created with it stays with its owner."""
    with connect() as client:
        show(client.revoke_key(key), _ended, as_json=as_json)


def me(as_json: AsJson = False) -> None:
    """Show the owner, scope and quotas of your API key."""
    with connect() as client:
        show(client.me(), views.standing, as_json=as_json)


def _create_direct(wanted: KeyRequest) -> str:
    """Create a key in the database, without a service."""
    from fedcore.platform.store import audit, keys, open_database, upgrade

    configured = configuration.settings()
    if configured.database_url is None:
        make_private_folder(configured.home)
    with using_database():
        upgrade(configured.database)
        with open_database(configured.database).transaction() as session:
            record, token = keys.create(session, **wanted.model_dump())
            audit.record(
                session,
                audit.AuditFacts("fedq key create --direct", 201, getuser(), "", gethostname()),
                record.id,
            )
    return token.text


def _end(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


def _checked(model: type[Checked], fields: dict[str, Any]) -> Checked:
    try:
        return model.model_validate(fields)
    except pydantic.ValidationError as error:
        for flaw in validation_errors.errors_of(error.errors(), model, fields):
            complain(f"{flaw.pointer.removeprefix('/')}: {flaw.detail}")
        raise typer.Exit(ExitCode.REFUSED) from error


def _ended(key: Key) -> str:
    return f"{key.id} was revoked at {key.revoked_at:{views.TIME}} UTC"


AuditOwner = Annotated[str | None, typer.Option(help="Show only actions of this owner.")]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="ID", help="Show only actions on this experiment, data set or key."),
]
AuditLimit = Annotated[int, typer.Option(min=1, help="Maximum number of entries, newest first.")]


def audit(
    owner: AuditOwner = None, target: Target = None, limit: AuditLimit = 20, as_json: AsJson = False
) -> None:
    """Show the audit log: changes and refused attempts, newest first."""
    with connect() as client:
        show_newest(client.audit(owner=owner, target=target), limit, views.audit, as_json=as_json)
