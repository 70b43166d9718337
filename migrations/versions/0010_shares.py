"""Use of each queue by its owners, and an index in which the best run of each owner and key is
found by an index skip scan.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table and the index; nobody has had anything yet."""
    op.create_table(
        "share",
        sa.Column("queue", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(200), primary_key=True),
        sa.Column("source", sa.String(200), primary_key=True),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("lift", sa.Double, nullable=False),
        sa.Column("clock", sa.Double, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
    )
    op.drop_index("run_by_turn", "run")
    op.create_index(
        "run_by_turn",
        "run",
        ["status", "queue", "owner", "key_id", "priority", "experiment_id", "queued_at", "id"],
    )


def downgrade() -> None:
    """Drop the table, and make the index what it was."""
    op.drop_index("run_by_turn", "run")
    op.create_index("run_by_turn", "run", ["status", "queue", "priority", "queued_at"])
    op.drop_table("share")
