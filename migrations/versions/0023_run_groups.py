"""Groups of workers that train shards of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def _run() -> sa.Column[str]:
    return sa.Column("run_id", sa.String(40), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "run_group",
        _run(),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("seats", sa.Integer, nullable=False),
    )
    op.create_table(
        "run_group_member",
        _run(),
        sa.Column("worker", sa.String(), primary_key=True),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("lease_until", MOMENT, nullable=False),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("run_group_member")
    op.drop_table("run_group")
