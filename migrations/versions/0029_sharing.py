"""Experiments that owners share with other users."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table; no experiment is shared."""
    op.create_table(
        "experiment_share",
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("owner", sa.String(200), primary_key=True),
        sa.Column("may_change", sa.Boolean, nullable=False),
    )
    op.create_index("experiment_share_by_owner", "experiment_share", ["owner"])


def downgrade() -> None:
    """Drop it: each experiment belongs to its owner alone again."""
    op.drop_table("experiment_share")
