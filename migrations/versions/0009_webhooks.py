"""Webhooks, and what they are to deliver."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("kinds", sa.JSON, nullable=False),
        sa.Column("experiment_id", sa.String(40)),
        sa.Column("tag", sa.String(64)),
        sa.Column("secret", sa.String(200), nullable=False),
        sa.Column("previous_secret", sa.String(200)),
        sa.Column("previous_until", MOMENT),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("disabled_at", MOMENT),
        sa.Column("disabled_reason", sa.Text),
        sa.Column("failing_since", MOMENT),
    )
    op.create_index("webhook_by_owner", "webhook", ["owner", "id"])
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column(
            "webhook_id", sa.String(40), sa.ForeignKey("webhook.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("attempts", sa.JSON, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT),
    )
    op.create_index("webhook_delivery_by_webhook", "webhook_delivery", ["webhook_id", "id"])
    op.create_index("webhook_delivery_by_turn", "webhook_delivery", ["status", "due_at"])


def downgrade() -> None:
    """Drop them: who is to be told, and what was not told yet, is lost."""
    op.drop_table("webhook_delivery")
    op.drop_table("webhook")
