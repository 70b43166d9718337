"""Values of further metrics of a study."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; studies so far have one metric."""
    op.add_column("search_arrival", sa.Column("further_values", sa.JSON))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("search_arrival", "further_values")
