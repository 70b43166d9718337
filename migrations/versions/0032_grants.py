"""One table of what owners share with other users: experiments, data sets, code bundles and weights."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, with the experiments that are shared."""
    op.create_table(
        "access_grant",
        sa.Column("resource_id", sa.String(40), primary_key=True),
        sa.Column("grantee", sa.String(200), primary_key=True),
        sa.Column("may_change", sa.Boolean, nullable=False),
    )
    op.create_index("access_grant_by_grantee", "access_grant", ["grantee"])
    op.execute(
        "INSERT INTO access_grant (resource_id, grantee, may_change)"
        " SELECT experiment_id, owner, may_change FROM experiment_share"
    )
    op.drop_table("experiment_share")


def downgrade() -> None:
    """Make the table of shared experiments again: all else belongs to its owner alone."""
    op.create_table(
        "experiment_share",
        sa.Column(
            "experiment_id",
            sa.String(40),
            sa.ForeignKey("experiment.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("owner", sa.String(200), primary_key=True),
        sa.Column("may_change", sa.Boolean, nullable=False),
    )
    op.create_index("experiment_share_by_owner", "experiment_share", ["owner"])
    op.execute(
        "INSERT INTO experiment_share (experiment_id, owner, may_change)"
        " SELECT resource_id, grantee, may_change FROM access_grant"
        " WHERE resource_id IN (SELECT id FROM experiment)"
    )
    op.drop_table("access_grant")
