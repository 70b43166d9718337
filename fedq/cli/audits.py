"""`fedq audit`."""

from itertools import islice
from typing import Annotated

import typer

from fedq.cli import views
from fedq.cli.connection import connect
from fedq.cli.terminal import AsJson, show

Owner = Annotated[str | None, typer.Option(help="Show only actions of this owner.")]
Target = Annotated[
    str | None, typer.Option(metavar="ID", help="Show only actions on this experiment, data set or key.")
]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of entries, newest first.")]


def audit(owner: Owner = None, target: Target = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """Show the audit log: changes and refused attempts, newest first."""
    with connect() as client:
        show(list(islice(client.audit(owner=owner, target=target), limit)), views.audit, as_json=as_json)
