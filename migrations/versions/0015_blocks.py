"""Measures of many rounds side by side."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; what runs have played already comes to be in it with their next rounds."""
    op.create_table(
        "block",
        sa.Column("run_id", sa.String(40), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("metric", sa.String(200), primary_key=True),
        sa.Column("first", sa.Integer, primary_key=True),
        sa.Column("values", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drop it: the rows have everything."""
    op.drop_table("block")
