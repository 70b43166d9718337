"""Which errors of runs say that a worker was lost."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; until now their text said so."""
    op.add_column("run", sa.Column("error_of_loss", sa.Boolean, nullable=False, server_default=sa.false()))
    op.execute(
        "UPDATE run SET error_of_loss = true WHERE error LIKE 'its worker was lost%' OR error LIKE 'its"
        " workers were lost%'"
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("run", "error_of_loss")
