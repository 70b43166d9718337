"""Rows of finished runs, packed: numbers are in blocks, and the rest is compressed."""

import json
import struct
import zlib
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

SIZE = 200
TO_PACK = sa.text("finished_at IS NOT NULL AND done - packed >= 200")
TO_FILL = {
    "run_to_fill": ("run", sa.text("figures IS NULL")),
    "experiment_to_fill": ("experiment", sa.text("parameters IS NULL")),
}
COLUMNS = ("train_loss", "test_loss", "test_accuracy", "local_steps", "bytes_up", "bytes_down", "seconds")
INTEGERS = ("local_steps", "bytes_up", "bytes_down")


def upgrade() -> None:
    """Make the table; the reconciler packs what has finished already."""
    op.create_table(
        "packed_rounds",
        sa.Column("run_id", sa.String(40), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("first", sa.Integer, primary_key=True),
        sa.Column("rest", sa.LargeBinary, nullable=False),
    )
    op.add_column("run", sa.Column("packed", sa.Integer, nullable=False, server_default="0"))
    op.create_index("run_to_pack", "run", ["id"], sqlite_where=TO_PACK, postgresql_where=TO_PACK)
    for name, (table, condition) in TO_FILL.items():
        op.create_index(name, table, ["id"], sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    """Write the packed rows back."""
    connection = op.get_bind()
    tables = sa.MetaData()
    tables.reflect(connection, only=["round", "block", "packed_rounds"])
    rounds, blocks, packed = (tables.tables[name] for name in ("round", "block", "packed_rounds"))
    is_sqlite = connection.dialect.name == "sqlite"
    for run_id, first in connection.execute(sa.select(packed.c.run_id, packed.c.first)).all():
        mine = packed.c.run_id == run_id, packed.c.first == first
        rest = json.loads(
            zlib.decompress(connection.execute(sa.select(packed.c.rest).where(*mine)).scalar_one())
        )
        own = blocks.c.run_id == run_id, blocks.c.first == first
        found = connection.execute(sa.select(blocks.c.metric, blocks.c["values"]).where(*own)).all()
        measures = {metric: struct.unpack(f"<{SIZE}d", values) for metric, values in found}
        rows = []
        for place, left in enumerate(rest):
            numbers = {
                name: values[place] for name, values in measures.items() if values[place] == values[place]
            }
            columns = {name: numbers.pop(name, None) for name in COLUMNS}
            columns |= {name: int(columns[name]) for name in INTEGERS if columns[name] is not None}
            moment = datetime.fromisoformat(left["committed_at"])
            rows.append(
                {
                    "run_id": run_id,
                    "round": first + place,
                    "extra": numbers | left["extra"],
                    "committed_at": moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if is_sqlite else moment,
                    **columns,
                    **left["columns"],
                }
            )
        connection.execute(sa.insert(rounds), rows)
    for name, (table, _) in TO_FILL.items():
        op.drop_index(name, table)
    op.drop_index("run_to_pack", "run")
    op.drop_column("run", "packed")
    op.drop_table("packed_rounds")
