"""Rounds: the rows of a run's curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from sqlalchemy import JSON, ColumnElement, Integer, Text, bindparam, case, cast, func, select
from sqlalchemy.orm import Session

from fedcore.platform.store import blocks
from fedcore.platform.store.clock import moment
from fedcore.platform.store.statements import insert_into
from fedcore.platform.store.tables import Document, RoundRecord, RunRecord
from fedcore.simulation.report import RoundReport

COLUMNS = ("train_loss", "test_loss", "test_accuracy", "local_steps", "bytes_up", "bytes_down", "seconds")
"""Measures with a column of their own; the others are in `extra`."""
_IN_ORDER = select(RoundRecord).order_by(RoundRecord.run_id, RoundRecord.round).limit(bindparam("most", type_=Integer))
_AFTER = _IN_ORDER.where(RoundRecord.run_id == bindparam("wanted"), RoundRecord.round > bindparam("after"))
# The runs and their rounds go as one JSON document, so that the statement is the same for any number of them.
_CURSORS = func.json_each(bindparam("cursors", type_=JSON)).table_valued("key", "value")
_AFTER_MANY = _IN_ORDER.join(_CURSORS, RoundRecord.run_id == _CURSORS.c.key).where(
    RoundRecord.round > cast(cast(_CURSORS.c.value, Text), Integer)
)


def append(session: Session, run_id: str, reports: Sequence[RoundReport]) -> None:
    """Store rounds of a run; what is not finite is stored as absent."""
    rows = [_row(run_id, report) | {"committed_at": moment(session)} for report in reports]
    session.execute(insert_into(RoundRecord), rows)
    blocks.append(session, run_id, rows, COLUMNS)


def after(session: Session, run_id: str, after: int = 0, limit: int = 1_000) -> Sequence[RoundRecord]:
    """The rounds of a run that follow round `after`, in order."""
    return session.scalars(_AFTER, {"wanted": run_id, "after": after, "most": limit}).all()


def after_many(session: Session, cursors: Mapping[str, int], limit: int = 1_000) -> Sequence[RoundRecord]:
    """The rounds of several runs, each after the round given for it, by run and round; at most `limit` in all."""
    return session.scalars(_AFTER_MANY, {"cursors": dict(cursors), "most": limit}).all()


def value(session: Session, run: RunRecord, metric: str, round: int) -> float | None:
    """A measure of a run after `round`; of a run that ended before, its last one."""
    chosen = figure(metric, session.get_bind().dialect.name)
    rows = select(chosen).where(RoundRecord.run_id == run.id)
    if run.done >= round:
        return session.scalars(rows.where(RoundRecord.round == round)).first()
    return session.scalars(rows.where(chosen.is_not(None)).order_by(RoundRecord.round.desc()).limit(1)).first()


def figure(metric: str, dialect: str) -> ColumnElement[float | None]:
    """A measure of a row, absent where it is not a number. Taken out by the database: `extra` need not be parsed here, row by row."""
    if metric in COLUMNS:
        column: ColumnElement[float | None] = getattr(RoundRecord, metric)
        return column
    entry = RoundRecord.extra[metric]
    numeric = (
        func.json_typeof(entry) == "number" if dialect == "postgresql" else func.json_type(RoundRecord.extra, f'$."{metric}"') != "array"
    )
    return case((numeric, entry.as_float()))


def _row(run_id: str, report: RoundReport) -> Document:
    row = {column: _finite(getattr(report, column)) for column in COLUMNS}
    return {"run_id": run_id, "round": report.round, **row, "extra": {name: _finite(value) for name, value in report.extra.items()}}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return value if value is None or isfinite(value) else None
