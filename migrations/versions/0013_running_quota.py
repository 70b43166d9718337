"""A quota of the runs of a key that are running."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: keys may have as many as they like."""
    op.add_column("api_key", sa.Column("max_running_runs", sa.Integer))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("api_key", "max_running_runs")
