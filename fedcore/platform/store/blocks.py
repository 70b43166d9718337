"""Blocks: measures of `SIZE` rounds of a run side by side, and the rows that they replace.

A block holds one measure. It is written with the last of its rounds, in the same transaction, and
never changes. Once a run has finished, its rows leave the table `round` block by block: numbers are
in the blocks already, and a `PackedRecord` keeps the rest, so the same rows can be read again. The
reconciler packs them; `curves` reads both.
"""

import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isnan, nan
from typing import Any

from sqlalchemy import JSON, Integer, Text, bindparam, cast, delete, func, select, true, update
from sqlalchemy.orm import Session

from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import (
    TO_PACK,
    BlockRecord,
    Document,
    PackedRecord,
    RoundRecord,
    RunRecord,
)
from fedcore.simulation.report import COLUMNS

SIZE = 200
"""Rounds of a block. PostgreSQL keeps values of this many bytes in the row itself."""
ANCHOR = "bytes_up"
"""A measure that every round has: if a round is in blocks, it is there too."""
PACKED_AT_ONCE = 50
"""Blocks of rows that leave the table in one transaction, of 0.2 s."""
_FLOATS = struct.Struct(f"<{SIZE}d")
ABSENT = _FLOATS.pack(*[nan] * SIZE)
"""Values of a measure without a block."""
_INTEGERS = frozenset({"local_steps", "bytes_up", "bytes_down"})
_MINE = BlockRecord.run_id == bindparam("run"), BlockRecord.metric == ANCHOR
_NEXT = select(func.coalesce(func.max(BlockRecord.first) + SIZE, 1)).where(*_MINE)
_ROWS = (
    select(RoundRecord)
    .where(
        RoundRecord.run_id == bindparam("run"),
        RoundRecord.round >= bindparam("start"),
        RoundRecord.round < bindparam("end"),
    )
    .order_by(RoundRecord.round)
)


def append_blocks(session: Session, run_id: str, rows: Sequence[Document]) -> None:
    """Write the blocks that `rows`, just stored, complete."""
    first, whole = rows[0]["round"], rows[-1]["round"] // SIZE * SIZE
    if whole < first:
        return
    start = session.scalars(_NEXT, {"run": run_id}).one()
    head = session.scalars(_ROWS, {"run": run_id, "start": start, "end": first}).all()
    measures = [_numbers_of_row(row) for row in head]
    measures += [
        numbers_of({column: row[column] for column in COLUMNS}, row["extra"])
        for row in rows
        if row["round"] >= start
    ]
    for block in range(start, whole, SIZE):
        _write(session, run_id, block, _packed(measures[block - start : block - start + SIZE]))


def numbers_of(values: Mapping[str, float | None], extra: Document) -> dict[str, float]:
    """The measures of a row that are numbers, from its columns and from `extra`."""
    return {name: value for name, value in {**extra, **values}.items() if isinstance(value, int | float)}


def _numbers_of_row(row: RoundRecord) -> dict[str, float]:
    return numbers_of({column: getattr(row, column) for column in COLUMNS}, row.extra)


def _packed(measures: Sequence[Mapping[str, float]]) -> dict[str, bytes]:
    """The block of each measure that one of these rounds has."""
    names = sorted({name for measured in measures for name in measured})
    return {name: _FLOATS.pack(*[measured.get(name, nan) for measured in measures]) for name in names}


def _write(session: Session, run_id: str, first: int, blocks: Mapping[str, bytes]) -> None:
    rows = [
        {"run_id": run_id, "metric": metric, "first": first, "values": values}
        for metric, values in blocks.items()
    ]
    session.execute(insert_into(BlockRecord), rows)


def pack_finished(session: Session, most: int = PACKED_AT_ONCE) -> int:
    """Move up to `most` blocks of rows of one finished run out of `round`; returns how many rows."""
    columns = RunRecord.id, RunRecord.packed, RunRecord.done
    # Its lock keeps the run from being extended meanwhile, and other reconcilers away.
    query = select(*columns).where(TO_PACK).order_by(RunRecord.id).limit(1)
    found = session.execute(query.with_for_update(skip_locked=True)).first()
    if found is None:
        return 0
    run_id, packed, done = found
    end = min(done // SIZE * SIZE, packed + most * SIZE)
    rows = {
        row.round: row for row in session.scalars(_ROWS, {"run": run_id, "start": packed + 1, "end": end + 1})
    }
    known = _blocks_between(session, run_id, packed + 1, end)
    records = []
    for first in range(packed + 1, end, SIZE):
        part = [rows[round] for round in range(first, first + SIZE) if round in rows]
        if len(part) < SIZE:
            break  # what an operator has deleted by hand is no reason to stop at this run for ever
        records.append({"run_id": run_id, "first": first, "rest": _rest(part, known[first])})
    moved = SIZE * len(records)
    if records:
        session.execute(insert_into(PackedRecord), records)
        gone = RoundRecord.round.between(packed + 1, packed + moved)
        session.execute(delete(RoundRecord).where(RoundRecord.run_id == run_id, gone))
    session.execute(update(RunRecord).where(RunRecord.id == run_id).values(packed=end))
    return moved


def _blocks_between(session: Session, run_id: str, first: int, last: int) -> dict[int, dict[str, bytes]]:
    """The blocks of a run by their first rounds and measures."""
    found: defaultdict[int, dict[str, bytes]] = defaultdict(dict)
    query = select(BlockRecord.first, BlockRecord.metric, BlockRecord.values).where(
        BlockRecord.run_id == run_id, BlockRecord.first.between(first, last)
    )
    for start, metric, values in session.execute(query):
        found[start][metric] = values
    return found


def _rest(rows: Sequence[RoundRecord], blocks: Mapping[str, bytes]) -> bytes:
    """The part of these rows that their blocks do not hold, as compressed JSON."""
    documents = []
    for row, (columns, extra) in zip(rows, _measures(blocks), strict=True):
        own = {name: getattr(row, name) for name in COLUMNS}
        documents.append(
            {
                "committed_at": row.committed_at.isoformat(),
                "columns": _differing(own, columns),
                "extra": _differing(row.extra, extra),
            }
        )
    return zlib.compress(json.dumps(documents, separators=(",", ":")).encode())


def _differing(values: Mapping[str, Any], found: Mapping[str, Any]) -> Document:
    return {
        name: value
        for name, value in values.items()
        if name not in found or type(found[name]) is not type(value) or found[name] != value
    }


def _measures(blocks: Mapping[str, bytes]) -> list[tuple[Document, Document]]:
    """The columns and the further measures of each round, as its blocks have them."""
    series = {metric: _FLOATS.unpack(values) for metric, values in blocks.items()}
    rounds = []
    for place in range(SIZE):
        numbers: Document = {
            metric: int(values[place]) if metric in _INTEGERS else values[place]
            for metric, values in series.items()
            if not isnan(values[place])
        }
        columns = {name: numbers.pop(name, None) for name in COLUMNS}
        rounds.append((columns, numbers))
    return rounds


def _unpacked(run_id: str, first: int, blocks: Mapping[str, bytes], rest: bytes) -> list[RoundRecord]:
    """The rows that `_rest` was made of."""
    return [
        RoundRecord(
            run_id=run_id,
            round=first + place,
            committed_at=datetime.fromisoformat(left["committed_at"]),
            **columns | left["columns"],
            extra=extra | left["extra"],
        )
        for place, ((columns, extra), left) in enumerate(
            zip(_measures(blocks), json.loads(zlib.decompress(rest)), strict=True)
        )
    ]


# Past the ORM, which would take longer than the database. The runs and their rounds go as one JSON
# document, so that the statement is the same for any number of them.
CURSORS = func.json_each(bindparam("cursors", type_=JSON)).table_valued("key", "value")
"""Runs and the round after which each is read, given as "cursors"."""
CURSOR_ROUND = cast(cast(CURSORS.c.value, Text), Integer)
_PACKED = (
    select(PackedRecord.run_id, PackedRecord.first, PackedRecord.rest)
    .join(CURSORS, PackedRecord.run_id == CURSORS.c.key)
    .where(PackedRecord.first > CURSOR_ROUND - SIZE)
    .order_by(PackedRecord.run_id, PackedRecord.first)
    .limit(bindparam("most", type_=Integer))
)


def packed_rows(session: Session, cursors: Mapping[str, int], limit: int) -> tuple[list[RoundRecord], bool]:
    """The packed rows of these runs, each after the round given for it, by run and round: at least
    `limit`, or all; and whether they are all.
    """
    most = limit // SIZE + 2
    found = session.execute(_PACKED, {"cursors": dict(cursors), "most": most}).all()
    rows: list[RoundRecord] = []
    spans: dict[str, tuple[int, int]] = {}
    for run_id, first, _ in found:
        spans[run_id] = (spans.get(run_id, (first, first))[0], first)
    blocks = {run_id: _blocks_between(session, run_id, *span) for run_id, span in spans.items()}
    for run_id, first, rest in found:
        unpacked = _unpacked(run_id, first, blocks[run_id][first], rest)
        rows += [row for row in unpacked if row.round > cursors[run_id]]
    return rows, len(found) < most


def packed_extra_measures(session: Session, experiment_id: str) -> dict[str, bool]:
    """The measures beside `COLUMNS` in packed rows of an experiment, and whether they are lists."""
    packed = RunRecord.experiment_id == experiment_id, RunRecord.packed > 0
    names = func.json_each(RunRecord.figures).table_valued("key", "value")
    numbers = select(names.c.key).select_from(RunRecord).join(names, true()).where(*packed).distinct()
    found = {name: False for name in session.scalars(numbers) if name not in COLUMNS}
    rests = select(PackedRecord.rest).join(RunRecord, RunRecord.id == PackedRecord.run_id).where(*packed)
    for rest in session.scalars(rests.execution_options(yield_per=SIZE)):
        for left in json.loads(zlib.decompress(rest)):
            for name, value in left["extra"].items():
                found[name] = found.get(name, False) or isinstance(value, list)
    return found
