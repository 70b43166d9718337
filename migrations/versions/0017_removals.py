"""Files that are to be removed from the storage."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "storage_removal",
        sa.Column("path", sa.String(200), primary_key=True),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
    )
    op.create_index("storage_removal_by_turn", "storage_removal", ["due_at"])


def downgrade() -> None:
    """Drop it: files that were not removed yet stay."""
    op.drop_table("storage_removal")
