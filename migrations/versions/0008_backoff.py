"""When a run may be taken up again after something went wrong."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Add the column; what waits now may go on at once."""
    op.add_column("run", sa.Column("not_before", MOMENT))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("run", "not_before")
