"""Experiments, their runs and rounds, idempotency keys, workers."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    _experiments()
    _runs()
    _rounds()
    _idempotency()
    _workers()


def downgrade() -> None:
    """Drop the tables."""
    for table in ("worker", "idempotency", "round", "run", "experiment_tag", "experiment"):
        op.drop_table(table)


def _experiments() -> None:
    op.create_table(
        "experiment",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("error", sa.Text),
        sa.Column("provenance", sa.JSON, nullable=False),
    )
    op.create_index("experiment_by_status", "experiment", ["status", "id"])
    op.create_index("experiment_by_name", "experiment", ["name", "id"])
    op.create_table(
        "experiment_tag",
        sa.Column("tag", sa.String(64), primary_key=True),
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
    )
    op.create_index("experiment_tag_by_experiment", "experiment_tag", ["experiment_id"])


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column(
            "experiment_id", sa.String(40), sa.ForeignKey("experiment.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("arm", sa.Integer, nullable=False),
        sa.Column("arm_name", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("queue", sa.String(64), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("queued_at", MOMENT, nullable=False),
        sa.Column("woken_at", MOMENT),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("lease_until", MOMENT),
        sa.Column("request", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("checkpoint", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("diverged_round", sa.Integer),
        sa.Column("error", sa.Text),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("provenance", sa.JSON, nullable=False),
    )
    op.create_index("run_by_experiment", "run", ["experiment_id", "id"])
    op.create_index("run_by_turn", "run", ["status", "queue", "priority", "queued_at"])
    op.create_index("run_by_lease", "run", ["status", "lease_until"])
    op.create_index("run_by_wake", "run", ["status", "woken_at"])


def _rounds() -> None:
    op.create_table(
        "round",
        sa.Column("run_id", sa.String(40), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("train_loss", sa.Double),
        sa.Column("test_loss", sa.Double),
        sa.Column("test_accuracy", sa.Double),
        sa.Column("local_steps", sa.BigInteger, nullable=False),
        sa.Column("bytes_up", sa.BigInteger, nullable=False),
        sa.Column("bytes_down", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("extra", sa.JSON, nullable=False),
        sa.Column("committed_at", MOMENT, nullable=False),
    )


def _idempotency() -> None:
    experiment = sa.ForeignKey("experiment.id", ondelete="CASCADE", deferrable=True, initially="DEFERRED")
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("experiment_id", sa.String(40), experiment, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    op.create_index("idempotency_by_experiment", "idempotency", ["experiment_id"])


def _workers() -> None:
    op.create_table(
        "worker",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("queues", sa.JSON, nullable=False),
        sa.Column("device", sa.String(200), nullable=False),
        sa.Column("run_id", sa.String(40)),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
    )
    op.create_index("worker_by_seen", "worker", ["seen_at"])
