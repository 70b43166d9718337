"""An index in which the best run of each owner and key of the highest priority is found by one step
of an index skip scan.
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

BEST_OF_EACH = ["status", "queue", "owner", "key_id", "priority", "experiment_id", "queued_at", "id"]
BEST_OF_ALL = ["status", "queue", "priority", "owner", "key_id", "experiment_id", "queued_at", "id"]


def upgrade() -> None:
    """Put the priority before the owner."""
    op.drop_index("run_by_turn", "run")
    op.create_index("run_by_turn", "run", BEST_OF_ALL)


def downgrade() -> None:
    """Put it behind the key."""
    op.drop_index("run_by_turn", "run")
    op.create_index("run_by_turn", "run", BEST_OF_EACH)
