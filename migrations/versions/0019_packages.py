"""The packages that runs need and workers have."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and an index of the runs that need packages."""
    op.add_column("run", sa.Column("packages", sa.Text))
    op.add_column("worker", sa.Column("packages", sa.JSON, nullable=False, server_default="[]"))
    needed = sa.text("packages IS NOT NULL")
    op.create_index(
        "run_by_packages", "run", ["status", "packages"], sqlite_where=needed, postgresql_where=needed
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_index("run_by_packages", "run")
    op.drop_column("worker", "packages")
    op.drop_column("run", "packages")
