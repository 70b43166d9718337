"""The data sets that workers have."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; workers that started before have not said."""
    op.add_column("worker", sa.Column("datasets", sa.JSON, nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("worker", "datasets")
