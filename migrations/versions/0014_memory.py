"""How much memory runs need and workers have."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; what is there may go anywhere."""
    op.add_column("run", sa.Column("memory_bytes", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("worker", sa.Column("memory_bytes", sa.BigInteger))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("worker", "memory_bytes")
    op.drop_column("run", "memory_bytes")
