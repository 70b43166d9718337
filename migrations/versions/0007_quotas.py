"""Quotas of API keys, and with which key runs and data sets were made."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; what is there counts for no key."""
    for table in ("run", "dataset"):
        op.add_column(table, sa.Column("key_id", sa.String(40), nullable=False, server_default=""))
    op.create_index("run_by_key", "run", ["key_id", "status"])
    op.create_index("dataset_by_key", "dataset", ["key_id"])
    op.add_column("api_key", sa.Column("max_waiting_runs", sa.Integer))
    op.add_column("api_key", sa.Column("max_stored_bytes", sa.BigInteger))
    op.add_column("api_key", sa.Column("max_compute_seconds", sa.Double))
    op.add_column("api_key", sa.Column("spent_seconds", sa.Double, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them."""
    for column in ("spent_seconds", "max_compute_seconds", "max_stored_bytes", "max_waiting_runs"):
        op.drop_column("api_key", column)
    op.drop_index("dataset_by_key", "dataset")
    op.drop_index("run_by_key", "run")
    for table in ("dataset", "run"):
        op.drop_column(table, "key_id")
