"""Pretrained weights that users have uploaded."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "weights",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("tensors", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.UniqueConstraint("owner", "digest", name="weights_by_content"),
    )
    op.create_index("weights_by_owner", "weights", ["owner", "id"])
    op.create_index("weights_by_key", "weights", ["key_id"])
    op.create_table(
        "weights_use",
        sa.Column(
            "weights_id", sa.String(40), sa.ForeignKey("weights.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
    )
    op.create_index("weights_use_by_experiment", "weights_use", ["experiment_id"])


def downgrade() -> None:
    """Drop them; the files stay in the storage."""
    op.drop_table("weights_use")
    op.drop_table("weights")
