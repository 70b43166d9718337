"""The trace in which an experiment was submitted."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("experiment", sa.Column("traceparent", sa.String(64)))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("experiment", "traceparent")
