"""The kind of a run's warning in a column of its own: progress reads it of every run, and took nine
times as long reading it from JSON.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

RUN = sa.table("run", sa.column("provenance", sa.JSON), sa.column("warning_kind", sa.String))


def upgrade() -> None:
    """Fill it from the provenance."""
    op.add_column("run", sa.Column("warning_kind", sa.String(16), nullable=True))
    kind = RUN.c.provenance[("warning", "kind")].as_string()
    op.execute(sa.update(RUN).values(warning_kind=kind).where(kind.in_(("at_chance", "worse"))))


def downgrade() -> None:
    """The provenance has it still."""
    op.drop_column("run", "warning_kind")
