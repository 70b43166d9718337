"""Curves of runs: the rows of their rounds, the blocks they are packed into, and series of single
measures.

A block holds one measure over `SIZE` rounds. It is written with the last of these rounds, in the
same transaction, and never changes. What is not in blocks, the rows after the last of them, is read
from the rows.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from sys import float_info
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import JSON, ColumnElement, Integer, Text, bindparam, case, cast, func, select, true
from sqlalchemy.orm import Session

from fedcore.platform.store.clock import database_time
from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import BlockRecord, Document, RoundRecord, RunRecord
from fedcore.simulation.report import COLUMNS, RoundReport
from fedcore.statistics.series import Series

SIZE = 200
"""Rounds of a block. PostgreSQL keeps values of this many bytes in the row itself."""
ANCHOR = "bytes_up"
"""A measure that every round has: whatever is in blocks, it is there too."""
_FLOATS = struct.Struct(f"<{SIZE}d")
ABSENT = _FLOATS.pack(*[nan] * SIZE)
"""Values of a measure without a block."""
_MINE = BlockRecord.run_id == bindparam("run"), BlockRecord.metric == ANCHOR
_NEXT = select(func.coalesce(func.max(BlockRecord.first) + SIZE, 1)).where(*_MINE)
_HEAD = (
    select(RoundRecord)
    .where(
        RoundRecord.run_id == bindparam("run"),
        RoundRecord.round >= bindparam("start"),
        RoundRecord.round < bindparam("end"),
    )
    .order_by(RoundRecord.round)
)


def append_blocks(session: Session, run_id: str, rows: Sequence[Document], columns: Sequence[str]) -> None:
    """Write the blocks that `rows`, just stored, complete.

    `columns` of them are numbers, and so are some of `extra`.
    """
    first, whole = rows[0]["round"], rows[-1]["round"] // SIZE * SIZE
    if whole < first:
        return
    start = session.scalars(_NEXT, {"run": run_id}).one()
    head = session.scalars(_HEAD, {"run": run_id, "start": start, "end": first}).all()
    measures = [_numbers({column: getattr(row, column) for column in columns}, row.extra) for row in head]
    measures += [
        _numbers({column: row[column] for column in columns}, row["extra"])
        for row in rows
        if row["round"] >= start
    ]
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


_IN_ORDER = (
    select(RoundRecord)
    .order_by(RoundRecord.run_id, RoundRecord.round)
    .limit(bindparam("most", type_=Integer))
)
_AFTER = _IN_ORDER.where(RoundRecord.run_id == bindparam("wanted"), RoundRecord.round > bindparam("after"))
# The runs and their rounds go as one JSON document, so that the statement is the same for any
# number of them.
_CURSORS = func.json_each(bindparam("cursors", type_=JSON)).table_valued("key", "value")
_AFTER_MANY = _IN_ORDER.join(_CURSORS, RoundRecord.run_id == _CURSORS.c.key).where(
    RoundRecord.round > cast(cast(_CURSORS.c.value, Text), Integer)
)


class Figures(NamedTuple):
    """One measure over the committed rounds of a run, as stored with the run.

    Tables of many runs read these instead of the rounds.
    """

    low: float
    high: float
    last: float
    last_round: int
    """The round of `last`: the latest that has the measure."""
    total: float


def updated_figures(
    figures: Document, rounds: Iterable[tuple[int, Mapping[str, float]]]
) -> dict[str, Figures]:
    """`figures` of a run by measure, with further rounds and their measures, in order."""
    found = {measure: Figures(*stored) for measure, stored in figures.items()}
    for round, measures in rounds:
        for measure, value in measures.items():
            if measure in found:
                low, high, _, _, total = found[measure]
                # JSON has no infinities.
                total = min(max(total + value, -float_info.max), float_info.max)
                found[measure] = Figures(min(low, value), max(high, value), value, round, total)
            else:
                found[measure] = Figures(value, value, value, round, value)
    return found


def measures_of(row: Document) -> dict[str, float]:
    """The measures of a row that are numbers."""
    return _numbers({column: row[column] for column in COLUMNS}, row["extra"])


def committed_figures(session: Session, run_id: str, reports: Sequence[RoundReport]) -> Document:
    """`RunRecord.figures` after the rounds that are being committed, with these reports."""
    before = session.scalars(select(RunRecord.figures).where(RunRecord.id == run_id)).one_or_none()
    rows = [report.row() for report in reports]
    return dict(updated_figures(before or {}, [(row["round"], measures_of(row)) for row in rows]))


def append_rounds(session: Session, run_id: str, reports: Sequence[RoundReport]) -> None:
    """Store rounds of a run; what is not finite is stored as absent."""
    committed_at = database_time(session)
    rows = [{"run_id": run_id, **report.row(), "committed_at": committed_at} for report in reports]
    session.execute(insert_into(RoundRecord), rows)
    append_blocks(session, run_id, rows, COLUMNS)


def after(session: Session, run_id: str, after: int = 0, limit: int = 1_000) -> Sequence[RoundRecord]:
    """The rounds of a run that follow round `after`, in order."""
    return session.scalars(_AFTER, {"wanted": run_id, "after": after, "most": limit}).all()


def after_many(session: Session, cursors: Mapping[str, int], limit: int = 1_000) -> Sequence[RoundRecord]:
    """The rounds of several runs, each after the round given for it, by run and round.

    At most `limit` in all.
    """
    return session.scalars(_AFTER_MANY, {"cursors": dict(cursors), "most": limit}).all()


def extra_measures(session: Session, experiment_id: str) -> dict[str, bool]:
    """The measures of an experiment beside `COLUMNS`, in order of names, and whether they are lists."""
    entries = func.json_each(RoundRecord.extra).table_valued("key", "value")
    is_list = func.max(case((cast(entries.c.value, Text).startswith("["), 1), else_=0))
    query = (
        select(entries.c.key, is_list)
        .select_from(RunRecord)
        .join(RoundRecord, RoundRecord.run_id == RunRecord.id)
        .join(entries, true())
        .where(RunRecord.experiment_id == experiment_id)
        .group_by(entries.c.key)
        .order_by(entries.c.key)
    )
    return {name: bool(found) for name, found in session.execute(query).all()}


def value(session: Session, run: RunRecord, metric: str, round: int) -> float | None:
    """A measure of a run after `round`; of a run that ended before, its last one."""
    chosen = figure(metric, session.get_bind().dialect.name)
    rows = select(chosen).where(RoundRecord.run_id == run.id)
    if run.done >= round:
        return session.scalars(rows.where(RoundRecord.round == round)).first()
    return session.scalars(
        rows.where(chosen.is_not(None)).order_by(RoundRecord.round.desc()).limit(1)
    ).first()


def figure(metric: str, dialect: str) -> ColumnElement[float | None]:
    """A measure of a row, absent where it is not a number.

    Taken out by the database: `extra` need not be parsed here, row by row.
    """
    if metric in COLUMNS:
        column: ColumnElement[float | None] = getattr(RoundRecord, metric)
        return column
    entry = RoundRecord.extra[metric]
    numeric = (
        func.json_typeof(entry) == "number"
        if dialect == "postgresql"
        else func.json_type(RoundRecord.extra, f'$."{metric}"') != "array"
    )
    return case((numeric, entry.as_float()))


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


_STORED = BlockRecord.__table__.c
# Past the ORM, which would take longer than the database.
_BLOCKS = (
    select(_STORED.run_id, _STORED.metric, _STORED.first, _STORED["values"])
    .join(_CURSORS, _STORED.run_id == _CURSORS.c.key)
    .where(_STORED.metric.in_(bindparam("metrics", expanding=True)))
)


def of_runs(session: Session, run_ids: Iterable[str], *metrics: str) -> dict[str, Series]:
    """The curves of these measures for those of the runs that have rounds, by run id."""
    metrics = tuple(dict.fromkeys(metrics))
    blocks = _blocks(session, run_ids, metrics)
    covered = {run_id: _covered(found[ANCHOR]) for run_id, found in blocks.items()}
    rows = _rows(session, covered, metrics)
    return {
        run_id: Series(
            {
                metric: _joined(found[metric], covered[run_id], values)
                for metric, values in zip(metrics, _columns(rows[run_id], metrics), strict=True)
            }
        )
        for run_id, found in blocks.items()
        if covered[run_id] or rows[run_id]
    }


_Blocks = Mapping[int, bytes]
"""By their first rounds."""
_Row = Sequence[float | None]


def _blocks(
    session: Session, run_ids: Iterable[str], metrics: Sequence[str]
) -> dict[str, defaultdict[str, dict[int, bytes]]]:
    found: dict[str, defaultdict[str, dict[int, bytes]]] = {run_id: defaultdict(dict) for run_id in run_ids}
    wanted = {"cursors": dict.fromkeys(found, 0), "metrics": [ANCHOR, *metrics]}
    for run_id, metric, first, values in session.execute(_BLOCKS, wanted).all():
        found[run_id][metric][first] = values
    return found


def _covered(blocks: _Blocks) -> int:
    """The last round up to which there are blocks without a gap."""
    last = 0
    while last + 1 in blocks:
        last += SIZE
    return last


def _rows(session: Session, covered: Mapping[str, int], metrics: Sequence[str]) -> Mapping[str, list[_Row]]:
    """The measures of the rounds past those that are `covered`, by run."""
    dialect = session.get_bind().dialect.name
    key, after = _CURSORS.c.key, cast(cast(_CURSORS.c.value, Text), Integer)
    wanted = [RoundRecord.run_id, RoundRecord.round, *[figure(metric, dialect) for metric in metrics]]
    query = select(*wanted).order_by(RoundRecord.run_id, RoundRecord.round)
    if dialect == "postgresql":
        # Else it takes a third of all rows that there are to be wanted, and reads the whole table.
        each = (
            select(*wanted)
            .where(RoundRecord.run_id == key, RoundRecord.round > after)
            .correlate(_CURSORS)
            .offset(0)
            .lateral()
        )
        query = select(each).select_from(_CURSORS.join(each, true())).order_by(each.c.run_id, each.c.round)
    else:
        query = query.join(_CURSORS, RoundRecord.run_id == key).where(RoundRecord.round > after)
    rows: defaultdict[str, list[_Row]] = defaultdict(list)
    for run_id, _, *values in session.execute(query, {"cursors": dict(covered)}).all():
        rows[run_id].append(values)
    return rows


def _columns(rows: Sequence[_Row], metrics: Sequence[str]) -> Iterable[_Row]:
    return zip(*rows, strict=True) if rows else [()] * len(metrics)


def _joined(blocks: _Blocks, covered: int, rest: _Row) -> Floats:
    """The measure up to round `covered`, and then the `rest`."""
    import numpy as np

    packed = b"".join(blocks.get(first, ABSENT) for first in range(1, covered, SIZE))
    return np.concatenate([np.frombuffer(packed, "<f8"), np.array(rest, np.float64)])
