"""Code bundles, and keys that may send them."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the tables; no key that exists may send code."""
    op.add_column("api_key", sa.Column("code", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "bundle",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("files", sa.JSON, nullable=False),
        sa.Column("components", sa.JSON, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.UniqueConstraint("owner", "digest", name="bundle_by_content"),
    )
    op.create_index("bundle_by_owner", "bundle", ["owner", "id"])
    op.create_index("bundle_by_key", "bundle", ["key_id"])
    op.create_table(
        "bundle_use",
        sa.Column(
            "bundle_id", sa.String(40), sa.ForeignKey("bundle.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
    )
    op.create_index("bundle_use_by_experiment", "bundle_use", ["experiment_id"])


def downgrade() -> None:
    """Drop them; the files of bundles stay in the storage."""
    op.drop_table("bundle_use")
    op.drop_table("bundle")
    op.drop_column("api_key", "code")
