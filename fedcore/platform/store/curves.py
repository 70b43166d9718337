"""Curves of runs: the rows of their rounds, and series of single measures.

Series are read from `blocks`, and what is not in blocks, the rows after the last of them, from the
rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from sys import float_info
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from sqlalchemy import ColumnElement, Integer, Text, bindparam, case, cast, func, select, true
from sqlalchemy.orm import Session

from fedcore.platform.provenance import CHANCE_ACCURACY, WARNING, warning_entry
from fedcore.platform.store.blocks import (
    ABSENT,
    ANCHOR,
    CURSOR_ROUND,
    CURSORS,
    SIZE,
    append_blocks,
    numbers_of,
    packed_extra_measures,
    packed_rows,
)
from fedcore.platform.store.clock import database_time
from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import BlockRecord, Document, RoundRecord, RunRecord
from fedcore.simulation.report import COLUMNS, RoundReport
from fedcore.statistics.poor_runs import MeasureEnds, WarningKind
from fedcore.statistics.series import Series

_IN_ORDER = (
    select(RoundRecord)
    .order_by(RoundRecord.run_id, RoundRecord.round)
    .limit(bindparam("most", type_=Integer))
)
_AFTER = _IN_ORDER.where(RoundRecord.run_id == bindparam("wanted"), RoundRecord.round > bindparam("after"))
_AFTER_MANY = _IN_ORDER.join(CURSORS, RoundRecord.run_id == CURSORS.c.key).where(
    RoundRecord.round > cast(cast(CURSORS.c.value, Text), Integer)
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
    first: float | None = None
    """The earliest value; None for measures that were stored before it was kept."""


def updated_figures(
    figures: Document, rounds: Iterable[tuple[int, Mapping[str, float]]]
) -> dict[str, Figures]:
    """`figures` of a run by measure, with further rounds and their measures, in order."""
    found = {measure: Figures(*stored) for measure, stored in figures.items()}
    for round, measures in rounds:
        for measure, value in measures.items():
            if measure in found:
                low, high, _, _, total, first = found[measure]
                # JSON has no infinities.
                total = min(max(total + value, -float_info.max), float_info.max)
                found[measure] = Figures(min(low, value), max(high, value), value, round, total, first)
            else:
                found[measure] = Figures(value, value, value, round, value, value)
    return found


def measures_of(row: Document) -> dict[str, float]:
    """The measures of a row that are numbers."""
    return numbers_of({column: row[column] for column in COLUMNS}, row["extra"])


class Judgement(TypedDict):
    """Columns of a finished run that say whether there is a reason to distrust it."""

    provenance: Document
    warning_kind: WarningKind | None


def judge(figures: Document, provenance: Mapping[str, Any], diverged_round: int | None) -> Judgement:
    """Return the provenance of a finished run with the warning that follows from its `figures`, and
    the kind of that warning; one that diverged needs none.
    """
    # An imported provenance may hold anything, such as the warning of other rows.
    kept = {name: value for name, value in provenance.items() if name != WARNING}
    if diverged_round is not None:
        return {"provenance": kept, "warning_kind": None}
    known = {measure: Figures(*stored) for measure, stored in figures.items()}
    ends = {measure: MeasureEnds(found.first, found.last) for measure, found in known.items()}
    chance = provenance.get(CHANCE_ACCURACY)
    entry = warning_entry(ends, chance if isinstance(chance, float) else None)
    return {"provenance": kept | entry, "warning_kind": entry[WARNING]["kind"] if entry else None}


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
    append_blocks(session, run_id, rows)


def after(session: Session, run_id: str, after: int = 0, limit: int = 1_000) -> Sequence[RoundRecord]:
    """The rounds of a run that follow round `after`, in order."""
    rows = session.scalars(_AFTER, {"wanted": run_id, "after": after, "most": limit}).all()
    return _with_packed(session, rows, {run_id: after}, limit)


def in_chunks(session: Session, run: RunRecord, size: int) -> Iterator[Sequence[RoundRecord]]:
    """Rounds of a run, in order, at most `size` at a time."""
    done = 0
    while done < run.done and (rows := after(session, run.id, done, size)):
        yield rows
        done = rows[-1].round


def after_many(session: Session, cursors: Mapping[str, int], limit: int = 1_000) -> Sequence[RoundRecord]:
    """The rounds of several runs, each after the round given for it, by run and round.

    At most `limit` in all.
    """
    rows = session.scalars(_AFTER_MANY, {"cursors": dict(cursors), "most": limit}).all()
    return _with_packed(session, rows, cursors, limit)


def _with_packed(
    session: Session, rows: Sequence[RoundRecord], cursors: Mapping[str, int], limit: int
) -> Sequence[RoundRecord]:
    """Rounds after the cursors: `rows`, which were read before, and rounds that are packed."""
    last = rows[-1].run_id if len(rows) == limit else None
    next_row = {row.run_id: row.round for row in reversed(rows)}
    # Rounds have no gaps: where the next one is a row, none is packed.
    behind = {
        run_id: done
        for run_id, done in cursors.items()
        if next_row.get(run_id) != done + 1 and (last is None or run_id <= last)
    }
    if not behind:
        return rows
    packed, are_all = packed_rows(session, behind, limit)
    # What was packed between the two statements is in both.
    found = {(row.run_id, row.round): row for row in (*packed, *rows)}
    end = max(found, default=("", 0)) if are_all else (packed[-1].run_id, packed[-1].round)
    return [found[place] for place in sorted(found) if place <= end][:limit]


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
    )
    found = {name: bool(found) for name, found in session.execute(query).all()}
    for name, listed in packed_extra_measures(session, experiment_id).items():
        found[name] = found.get(name, False) or listed
    return dict(sorted(found.items()))


def value(session: Session, run: RunRecord, metric: str, round: int) -> float | None:
    """A measure of a run after `round`; of a run that ended before, its last one."""
    chosen = figure(metric, session.get_bind().dialect.name)
    rows = select(RoundRecord.round, chosen).where(RoundRecord.run_id == run.id)
    if run.done >= round:
        wanted = rows.where(RoundRecord.round == round)
    else:
        wanted = rows.where(chosen.is_not(None)).order_by(RoundRecord.round.desc()).limit(1)
    found = session.execute(wanted).first()
    if found is not None:
        measured: float | None = found[1]
        return measured
    curve = of_runs(session, [run.id], metric).get(run.id)
    packed = [] if curve is None else curve.listed(metric)[:round]
    if run.done >= round:
        packed = packed[round - 1 :]
    return next((value for value in reversed(packed) if value is not None), None)


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
    .join(CURSORS, _STORED.run_id == CURSORS.c.key)
    .where(_STORED.metric.in_(bindparam("metrics", expanding=True)))
)


def of_runs(session: Session, run_ids: Iterable[str], *metrics: str) -> dict[str, Series]:
    """The curves of these measures by run id, for each of the runs that has rounds."""
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
"""Packed blocks by the first round of each."""
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
    """The measures of the rounds past the `covered` ones, by run."""
    dialect = session.get_bind().dialect.name
    key, after = CURSORS.c.key, CURSOR_ROUND
    wanted = [RoundRecord.run_id, RoundRecord.round, *[figure(metric, dialect) for metric in metrics]]
    query = select(*wanted).order_by(RoundRecord.run_id, RoundRecord.round)
    if dialect == "postgresql":
        # Else it takes a third of all rows that there are to be wanted, and reads the whole table.
        each = (
            select(*wanted)
            .where(RoundRecord.run_id == key, RoundRecord.round > after)
            .correlate(CURSORS)
            .offset(0)
            .lateral()
        )
        query = select(each).select_from(CURSORS.join(each, true())).order_by(each.c.run_id, each.c.round)
    else:
        query = query.join(CURSORS, RoundRecord.run_id == key).where(RoundRecord.round > after)
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
