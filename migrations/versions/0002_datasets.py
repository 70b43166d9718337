"""Users' own data sets, the experiments that train on them, and the keys they were uploaded
under.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "dataset",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("client_sizes", sa.JSON, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.UniqueConstraint("owner", "digest", name="dataset_by_content"),
    )
    op.create_table(
        "dataset_use",
        sa.Column(
            "dataset_id", sa.String(40), sa.ForeignKey("dataset.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
    )
    op.create_index("dataset_use_by_experiment", "dataset_use", ["experiment_id"])
    op.create_table(
        "dataset_key",
        sa.Column("principal", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column(
            "dataset_id", sa.String(40), sa.ForeignKey("dataset.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    op.create_index("dataset_key_by_dataset", "dataset_key", ["dataset_id"])


def downgrade() -> None:
    """Drop the tables; the files of the data sets stay in the storage."""
    for table in ("dataset_key", "dataset_use", "dataset"):
        op.drop_table(table)
