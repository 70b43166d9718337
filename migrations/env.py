"""Runs revisions on the connection that the caller put into the configuration."""

from contextlib import nullcontext

from alembic import context
from sqlalchemy import Connection


def run(connection: Connection) -> None:
    """Run the revisions in one transaction, on SQLite too: whoever connects begins it
    explicitly.
    """
    metadata = context.config.attributes.get("target_metadata")
    context.configure(
        connection=connection, target_metadata=metadata, transactional_ddl=True, render_as_batch=True
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes["connection"]
with nullcontext(given) if isinstance(given, Connection) else given.connect() as opened:
    run(opened)
