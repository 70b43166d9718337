"""Tallies: how often things have happened in all, by who counted them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "tally",
        sa.Column("source", sa.String(200), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Drop the table, and with it the totals."""
    op.drop_table("tally")
