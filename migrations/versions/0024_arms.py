"""Settings of arms and figures of runs, which tables of arms select and sort by."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them; what is there already is filled in from the specifications and the rounds."""
    op.create_table(
        "arm",
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("arm", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("parameters", sa.JSON, nullable=False),
    )
    op.add_column("experiment", sa.Column("parameters", sa.JSON))
    op.add_column("run", sa.Column("figures", sa.JSON))


def downgrade() -> None:
    """Drop them: specifications and rounds have everything."""
    op.drop_column("run", "figures")
    op.drop_column("experiment", "parameters")
    op.drop_table("arm")
