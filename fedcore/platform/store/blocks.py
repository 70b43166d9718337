"""Blocks: rounds of a run that follow each other, as they are stored.

A block is one JSON document with a list for each measure, so that a curve, which needs few measures
of all rounds, is read without taking rounds apart. Further rounds join the last block of their run
until it is full, in the transaction of their commit; a full block never changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from fedcore.measures import count_numbers
from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import BlockRecord, Document
from fedcore.simulation.report import COLUMNS

FULL = 2_000
"""Numbers of a full block. With fewer, curves are read from more blocks; with more, each commit, which
writes the last block of its run anew, takes longer.
"""
_NOT_FINITE = False
"""A value of `extra` that is null: null in a block says that the round does not have the measure."""


class StoredRound(NamedTuple):
    """One round of one run; None where it was not evaluated, has no meaning, or was not finite."""

    run_id: str
    round: int
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    local_steps: int
    bytes_up: int
    bytes_down: int
    seconds: float
    extra: Document
    """Other measures by name."""
    committed_at: datetime


class RoundBlock(NamedTuple):
    """Rounds that follow each other; each list has an entry for each of them."""

    committed_at: list[str]
    columns: dict[str, list[Any]]
    """Measures of `COLUMNS`."""
    extra: dict[str, list[Any]]
    """Other measures."""

    @classmethod
    def empty(cls) -> "RoundBlock":
        """Return a block without rounds."""
        return cls([], {name: [] for name in COLUMNS}, {})

    @classmethod
    def read(cls, document: str) -> "RoundBlock":
        """Return the block of a document."""
        return cls(**from_json(document))

    def document(self) -> str:
        """Return the block as it is stored. Numbers are written so that they are read to the last bit."""
        return to_json(self._asdict()).decode()

    def size(self) -> int:
        """Return how many numbers it has."""
        scalars = len(self.committed_at) * (len(self.columns) + len(self.extra))
        return scalars + sum(map(_listed, self.extra.values()))

    def add(self, row: Document) -> int:
        """Add a round, in place; returns how many numbers it has."""
        for name in row["extra"]:
            self.extra.setdefault(name, [None] * len(self.committed_at))
        for name, values in self.extra.items():
            value = row["extra"].get(name)
            values.append(_NOT_FINITE if value is None and name in row["extra"] else value)
        for name, values in self.columns.items():
            values.append(row[name])
        self.committed_at.append(row["committed_at"].isoformat())
        return len(COLUMNS) + len(row["extra"]) + _listed(row["extra"].values())

    def rounds(self, run_id: str, last: int) -> Iterator[StoredRound]:
        """Yield the rounds of a block of this run, of which the last one has this number."""
        columns = zip(*(self.columns[name] for name in COLUMNS), strict=True)
        first = last + 1 - len(self.committed_at)
        for place, (committed_at, measures) in enumerate(zip(self.committed_at, columns, strict=True)):
            extra = {
                name: None if values[place] is _NOT_FINITE else values[place]
                for name, values in self.extra.items()
                if values[place] is not None
            }
            moment = datetime.fromisoformat(committed_at)
            yield StoredRound._make((run_id, first + place, *measures, extra, moment))

    def series(self, metric: str) -> list[float | None]:
        """Return a measure, None where it is not a number."""
        values = self.columns.get(metric) or self.extra.get(metric)
        if values is None:
            return [None] * len(self.committed_at)
        return [value if type(value) in (float, int) else None for value in values]


def _listed(values: Iterable[Any]) -> int:
    """Count the numbers in lists and matrices."""
    return sum(count_numbers(value) for value in values if isinstance(value, list))


_MINE = BlockRecord.run_id == bindparam("run")
_LAST = select(BlockRecord.last, BlockRecord.rounds).where(_MINE).order_by(BlockRecord.last.desc()).limit(1)
_REPLACE = (
    update(BlockRecord)
    .where(_MINE, BlockRecord.last == bindparam("before"))
    .values(last=bindparam("until"), rounds=bindparam("joined"))
)


def append_rows(session: Session, run_id: str, rows: Sequence[Document]) -> None:
    """Store rounds that follow the last one of a run; the transaction holds the run's row."""
    found = session.execute(_LAST, {"run": run_id}).first()
    before = 0 if found is None else found.last
    assert rows[0]["round"] == before + 1, f"round {rows[0]['round']} does not follow round {before}"
    block = RoundBlock.empty() if found is None else RoundBlock.read(found.rounds)
    size = block.size()
    if size >= FULL:
        found, block, size = None, RoundBlock.empty(), 0
    filled = _filled(block, size, rows)
    if found is not None:
        until, block = next(filled)
        session.execute(
            _REPLACE, {"run": run_id, "before": before, "until": until, "joined": block.document()}
        )
    new = [{"run_id": run_id, "last": last, "rounds": block.document()} for last, block in filled]
    if new:
        session.execute(insert_into(BlockRecord), new)


def _filled(block: RoundBlock, size: int, rows: Sequence[Document]) -> Iterator[tuple[int, RoundBlock]]:
    """Add rounds to a block of this size, and to new ones once it is full; yields each with its last
    round.
    """
    for row in rows:
        size += block.add(row)
        if size >= FULL:
            yield row["round"], block
            block, size = RoundBlock.empty(), 0
    if size:
        yield rows[-1]["round"], block
