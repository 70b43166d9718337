"""The tables of FedQ 0.1.0."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.TIMESTAMP(timezone=True).with_variant(sa.String(23), "sqlite")
TABLES = (
    "experiment",
    "experiment_tag",
    "arm",
    "idempotency",
    "run",
    "run_group",
    "run_group_member",
    "run_log",
    "run_resources",
    "block",
    "search",
    "search_arrival",
    "dataset",
    "dataset_use",
    "bundle",
    "bundle_use",
    "weights",
    "weights_use",
    "api_key",
    "access_grant",
    "audit",
    "webhook",
    "webhook_delivery",
    "worker",
    "share",
    "tally",
    "storage_removal",
)
"""Tables in an order in which they can be made."""


def upgrade() -> None:
    """Make the tables."""
    _experiments()
    _runs()
    _rounds()
    _search()
    _uploads()
    _access()
    _webhooks()
    _workers()


def downgrade() -> None:
    """Drop the tables."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _reference(column: str, referred: str, **options: Any) -> sa.Column[Any]:
    """A column of ids whose rows are deleted with the row that they refer to."""
    return sa.Column(column, sa.String(40), sa.ForeignKey(referred, ondelete="CASCADE"), **options)


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
        sa.Column("traceparent", sa.String(64)),
        sa.Column("notes", sa.Text, nullable=False),
        sa.Column("starred", sa.Boolean, nullable=False),
        sa.Column("archived", sa.Boolean, nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
    )
    op.create_index("experiment_by_name", "experiment", ["name", "id"])
    op.create_index("experiment_by_owner", "experiment", ["owner", "id"])
    op.create_index("experiment_by_status", "experiment", ["status", "id"])
    op.create_table(
        "experiment_tag",
        sa.Column("tag", sa.String(64), primary_key=True),
        _reference("experiment_id", "experiment.id", primary_key=True),
    )
    op.create_index("experiment_tag_by_experiment", "experiment_tag", ["experiment_id"])
    op.create_table(
        "arm",
        _reference("experiment_id", "experiment.id", primary_key=True),
        sa.Column("arm", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("parameters", sa.JSON, nullable=False),
    )
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE", deferrable=True, initially="DEFERRED"),
            nullable=False,
        ),
    )
    op.create_index("idempotency_by_experiment", "idempotency", ["experiment_id"])


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.String(40), primary_key=True),
        _reference("experiment_id", "experiment.id", nullable=False),
        sa.Column("arm", sa.Integer, nullable=False),
        sa.Column("arm_name", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("until", sa.Integer),
        sa.Column("held_at", MOMENT),
        sa.Column("stop_reason", sa.String(16)),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("queue", sa.String(64), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("queued_at", MOMENT, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("lease_until", MOMENT),
        sa.Column("request", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("not_before", MOMENT),
        sa.Column("shortages", sa.Integer, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("work", sa.Double, nullable=False),
        sa.Column("work_kind", sa.Text, nullable=False),
        sa.Column("packages", sa.Text),
        sa.Column("checkpoint", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("diverged_round", sa.Integer),
        sa.Column("error", sa.Text),
        sa.Column("error_of_loss", sa.Boolean, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("provenance", sa.JSON, nullable=False),
        sa.Column("warning_kind", sa.String(16)),
        sa.Column("notes", sa.Text, nullable=False),
        sa.Column("figures", sa.JSON, nullable=False),
    )
    op.create_index("run_by_experiment", "run", ["experiment_id", "id"])
    op.create_index("run_by_key", "run", ["key_id", "status"])
    op.create_index("run_by_lease", "run", ["status", "lease_until"])
    op.create_index(
        "run_by_packages",
        "run",
        ["status", "packages"],
        sqlite_where=sa.text("packages IS NOT NULL"),
        postgresql_where=sa.text("packages IS NOT NULL"),
    )
    op.create_index(
        "run_by_turn",
        "run",
        ["status", "queue", "priority", "owner", "key_id", "experiment_id", "queued_at", "id"],
    )
    op.create_table(
        "run_group",
        _reference("run_id", "run.id", primary_key=True),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("address", sa.String(200), nullable=False),
        sa.Column("seats", sa.Integer, nullable=False),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("trained", sa.JSON, nullable=False),
    )
    op.create_table(
        "run_group_member",
        _reference("run_id", "run.id", primary_key=True),
        sa.Column("worker", sa.String(200), primary_key=True),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("lease_until", MOMENT, nullable=False),
        sa.Column("connection", sa.String, nullable=False),
    )
    op.create_table(
        "run_log",
        _reference("run_id", "run.id", primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("time", MOMENT, nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("fields", sa.JSON, nullable=False),
    )
    op.create_table(
        "run_resources",
        _reference("run_id", "run.id", primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("time", MOMENT, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("cpu_cores", sa.Double, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("gpu_utilisation", sa.Double),
        sa.Column("gpu_memory_bytes", sa.BigInteger),
    )


def _rounds() -> None:
    op.create_table(
        "block",
        _reference("run_id", "run.id", primary_key=True),
        sa.Column("last", sa.Integer, primary_key=True),
        sa.Column("rounds", sa.Text, nullable=False),
    )


def _search() -> None:
    op.create_table(
        "search",
        _reference("experiment_id", "experiment.id", primary_key=True),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("metric", sa.String(64), nullable=False),
        sa.Column("maximise", sa.Boolean, nullable=False),
        sa.Column("eta", sa.Integer, nullable=False),
        sa.Column("arms", sa.Integer, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("rungs", sa.JSON, nullable=False),
        sa.Column("arrivals", sa.Integer, nullable=False),
    )
    op.create_table(
        "search_arrival",
        _reference("experiment_id", "search.experiment_id", primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("arm", sa.Integer, nullable=False),
        sa.Column("rung", sa.Integer, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("further_values", sa.JSON),
        sa.Column("arrived_at", MOMENT, nullable=False),
        sa.Column("verdict", sa.String(16)),
        sa.Column("rank", sa.Integer),
        sa.Column("field", sa.Integer),
        sa.Column("places", sa.Integer),
        sa.Column("decided_by", sa.Integer),
        sa.Column("decided_at", MOMENT),
        sa.UniqueConstraint("experiment_id", "arm", "rung", name="search_arrival_once"),
    )


def _uploads() -> None:
    _upload(
        "dataset",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("client_sizes", sa.JSON, nullable=False),
    )
    _upload(
        "bundle",
        sa.Column("files", sa.JSON, nullable=False),
        sa.Column("components", sa.JSON, nullable=False),
    )
    _upload(
        "weights",
        sa.Column("content", sa.String(16), nullable=False),
        sa.Column("tensors", sa.Integer, nullable=False),
    )


def _upload(name: str, *own: sa.Column[Any]) -> None:
    """Tables of one kind of upload, and of the experiments that use them."""
    op.create_table(
        name,
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        *own,
        sa.UniqueConstraint("owner", "digest", name=f"{name}_by_content"),
    )
    op.create_index(f"{name}_by_key", name, ["key_id"])
    op.create_index(f"{name}_by_owner", name, ["owner", "id"])
    use = f"{name}_use"
    op.create_table(
        use,
        _reference("upload_id", f"{name}.id", primary_key=True),
        _reference("experiment_id", "experiment.id", primary_key=True),
    )
    op.create_index(f"{use}_by_experiment", use, ["experiment_id"])


def _access() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("code", sa.Boolean, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT),
        sa.Column("revoked_at", MOMENT),
        sa.Column("last_used_at", MOMENT),
        sa.Column("max_waiting_runs", sa.Integer),
        sa.Column("max_running_runs", sa.Integer),
        sa.Column("max_stored_bytes", sa.BigInteger),
        sa.Column("max_compute_seconds", sa.Double),
        sa.Column("spent_seconds", sa.Double, nullable=False),
    )
    op.create_table(
        "access_grant",
        sa.Column("resource_id", sa.String(40), primary_key=True),
        sa.Column("grantee", sa.String(200), primary_key=True),
        sa.Column("may_change", sa.Boolean, nullable=False),
    )
    op.create_index("access_grant_by_grantee", "access_grant", ["grantee"])
    op.create_table(
        "audit",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("action", sa.String(200), nullable=False),
        sa.Column("target", sa.String(200), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("address", sa.String(200), nullable=False),
        sa.Column("request_id", sa.String(200), nullable=False),
    )
    op.create_index("audit_by_owner", "audit", ["owner", "id"])
    op.create_index("audit_by_target", "audit", ["target", "id"])


def _webhooks() -> None:
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("kinds", sa.JSON, nullable=False),
        sa.Column("experiment_id", sa.String(40)),
        sa.Column("secret", sa.String(200), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("disabled_at", MOMENT),
        sa.Column("disabled_reason", sa.Text),
        sa.Column("failing_since", MOMENT),
        sa.Column("last_id", sa.String(40)),
        sa.Column("last_status", sa.String(16)),
        sa.Column("last_attempt_at", MOMENT),
        sa.Column("last_error", sa.Text),
        sa.Column("next_attempt_at", MOMENT),
    )
    op.create_index("webhook_by_owner", "webhook", ["owner", "id"])
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.String(40), primary_key=True),
        _reference("webhook_id", "webhook.id", nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
    )
    op.create_index("webhook_delivery_by_turn", "webhook_delivery", ["due_at"])
    op.create_index("webhook_delivery_by_webhook", "webhook_delivery", ["webhook_id"])


def _workers() -> None:
    op.create_table(
        "worker",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("queues", sa.JSON, nullable=False),
        sa.Column("device", sa.String(200), nullable=False),
        sa.Column("run_id", sa.String(40)),
        sa.Column("memory_bytes", sa.BigInteger),
        sa.Column("packages", sa.JSON, nullable=False),
        sa.Column("datasets", sa.JSON),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
    )
    op.create_index("worker_by_seen", "worker", ["seen_at"])
    op.create_table(
        "share",
        sa.Column("queue", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(200), primary_key=True),
        sa.Column("source", sa.String(200), primary_key=True),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("lift", sa.Double, nullable=False),
        sa.Column("clock", sa.Double, nullable=False),
    )
    op.create_table(
        "tally",
        sa.Column("source", sa.String(200), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Double, nullable=False),
    )
    op.create_table(
        "storage_removal",
        sa.Column("path", sa.String(200), primary_key=True),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
    )
    op.create_index("storage_removal_by_turn", "storage_removal", ["due_at"])
