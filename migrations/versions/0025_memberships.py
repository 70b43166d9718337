"""Groups have a device and the shards of their last round; memberships a name for their connection."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; workers of the version before leave them out."""
    op.add_column("run_group", sa.Column("device", sa.String, nullable=False, server_default="cpu"))
    op.add_column("run_group", sa.Column("trained", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("run_group_member", sa.Column("connection", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("run_group_member", "connection")
    op.drop_column("run_group", "trained")
    op.drop_column("run_group", "device")
