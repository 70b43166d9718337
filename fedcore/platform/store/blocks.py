"""Blocks: measures of many rounds of a run, side by side; what is read instead of the rows where a whole curve is wanted.

A block holds one measure over `SIZE` rounds. It is written with the last of these rounds, in the same transaction, and never
changes. What is not in blocks, the rows after the last of them, is read from the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import nan

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from fedcore.platform.store.statements import insert_into
from fedcore.platform.store.tables import BlockRecord, Document, RoundRecord

SIZE = 200
"""Rounds of a block. PostgreSQL keeps values of so many bytes in the row itself."""
ANCHOR = "bytes_up"
"""A measure that every round has: whatever is in blocks, it is there too."""
_FLOATS = struct.Struct(f"<{SIZE}d")
ABSENT = _FLOATS.pack(*[nan] * SIZE)
"""What a measure is where it has no block."""
_MINE = BlockRecord.run_id == bindparam("run"), BlockRecord.metric == ANCHOR
_NEXT = select(func.coalesce(func.max(BlockRecord.first) + SIZE, 1)).where(*_MINE)
_HEAD = (
    select(RoundRecord)
    .where(RoundRecord.run_id == bindparam("run"), RoundRecord.round >= bindparam("start"), RoundRecord.round < bindparam("end"))
    .order_by(RoundRecord.round)
)


def append(session: Session, run_id: str, rows: Sequence[Document], columns: Sequence[str]) -> None:
    """Write the blocks that `rows`, just stored, complete; `columns` of them are numbers, and so are some of `extra`."""
    first, whole = rows[0]["round"], rows[-1]["round"] // SIZE * SIZE
    if whole < first:
        return
    start = session.scalars(_NEXT, {"run": run_id}).one()
    head = session.scalars(_HEAD, {"run": run_id, "start": start, "end": first}).all()
    measures = [_numbers({column: getattr(row, column) for column in columns}, row.extra) for row in head]
    measures += [_numbers({column: row[column] for column in columns}, row["extra"]) for row in rows if row["round"] >= start]
    blocks = [
        {"run_id": run_id, "metric": metric, "first": block, "values": values}
        for block in range(start, whole, SIZE)
        for metric, values in _packed(measures[block - start : block - start + SIZE]).items()
    ]
    session.execute(insert_into(BlockRecord), blocks)


def _numbers(values: Mapping[str, float | None], extra: Document) -> dict[str, float]:
    return {name: value for name, value in {**extra, **values}.items() if isinstance(value, int | float)}


def _packed(measures: Sequence[Mapping[str, float]]) -> dict[str, bytes]:
    """The block of each measure that one of these rounds has."""
    names = sorted({name for measured in measures for name in measured})
    return {name: _FLOATS.pack(*[measured.get(name, nan) for measured in measures]) for name in names}
