"""The audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "audit",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("action", sa.String(200), nullable=False),
        sa.Column("target", sa.String(200), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("address", sa.String(200), nullable=False),
        sa.Column("request_id", sa.String(200), nullable=False),
    )
    op.create_index("audit_by_owner", "audit", ["owner", "id"])
    op.create_index("audit_by_target", "audit", ["target", "id"])


def downgrade() -> None:
    """Drop the table, and with it what it tells."""
    op.drop_table("audit")
