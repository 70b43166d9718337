"""Searches over the arms of an experiment, and runs that end before their last round."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")
OF_RUNS: dict[str, sa.types.TypeEngine[Any]] = {
    "until": sa.Integer(),
    "held_at": MOMENT,
    "stop_reason": sa.String(16),
}


def upgrade() -> None:
    """Make the tables, and add to the runs; those that are there have no search."""
    for name, kind in OF_RUNS.items():
        op.add_column("run", sa.Column(name, kind))
    _searches()
    _arrivals()


def downgrade() -> None:
    """Drop them; what a search has ended has ended, and what waited at a rung is queued."""
    op.drop_table("search_arrival")
    op.drop_table("search")
    op.execute("UPDATE run SET status = 'queued' WHERE status = 'waiting'")
    for name in reversed(OF_RUNS):
        op.drop_column("run", name)


def _searches() -> None:
    op.create_table(
        "search",
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("metric", sa.String(64), nullable=False),
        sa.Column("maximise", sa.Boolean, nullable=False),
        sa.Column("eta", sa.Integer, nullable=False),
        sa.Column("arms", sa.Integer, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("rungs", sa.JSON, nullable=False),
        sa.Column("arrivals", sa.Integer, nullable=False),
    )


def _arrivals() -> None:
    op.create_table(
        "search_arrival",
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("search.experiment_id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("arm", sa.Integer, nullable=False),
        sa.Column("rung", sa.Integer, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("arrived_at", MOMENT, nullable=False),
        sa.Column("verdict", sa.String(16)),
        sa.Column("rank", sa.Integer),
        sa.Column("field", sa.Integer),
        sa.Column("places", sa.Integer),
        sa.Column("decided_by", sa.Integer),
        sa.Column("decided_at", MOMENT),
        sa.UniqueConstraint("experiment_id", "arm", "rung", name="search_arrival_once"),
    )
