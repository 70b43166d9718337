"""API keys, and listings by owner.

Whatever was made before there were keys has the owner `local`, whose key an embedded stack makes
for itself; elsewhere a key for that owner, or any key of an administrator, reaches it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the table and the indexes."""
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT),
        sa.Column("revoked_at", MOMENT),
        sa.Column("last_used_at", MOMENT),
    )
    op.create_index("experiment_by_owner", "experiment", ["owner", "id"])
    op.create_index("dataset_by_owner", "dataset", ["owner", "id"])


def downgrade() -> None:
    """Drop them: the keys are lost, and what they made stays with its owners."""
    op.drop_index("dataset_by_owner", "dataset")
    op.drop_index("experiment_by_owner", "experiment")
    op.drop_table("api_key")
