"""Notes of experiments and runs, stars and the archive."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; no experiment has a star, and none is archived."""
    op.add_column("experiment", sa.Column("notes", sa.Text, nullable=False, server_default=""))
    op.add_column("experiment", sa.Column("starred", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("experiment", sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("run", sa.Column("notes", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Drop them, with what users have written."""
    op.drop_column("run", "notes")
    op.drop_column("experiment", "archived")
    op.drop_column("experiment", "starred")
    op.drop_column("experiment", "notes")
