"""Curves of runs: their rounds, and series of single measures, both read from `blocks`."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from sys import float_info
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from sqlalchemy import JSON, Integer, Text, bindparam, cast, func, select
from sqlalchemy.orm import Session

from fedcore.lazy import np
from fedcore.measures import count_axes
from fedcore.platform.provenance import CHANCE_ACCURACY, WARNING, warning_entry
from fedcore.platform.store.blocks import RoundBlock, StoredRound, append_rows
from fedcore.platform.store.clock import database_time
from fedcore.platform.store.tables import BlockRecord, Document, RunRecord
from fedcore.simulation.report import COLUMNS, RoundReport
from fedcore.statistics.poor_runs import MeasureEnds, WarningKind
from fedcore.statistics.series import Series
from fedcore.statistics.summary import better_of, selector_of

if TYPE_CHECKING:
    from fedcore.statistics.series import Floats

READ_AT_ONCE = 20
"""Blocks in memory at a time."""
LISTS_WITHIN = 4
"""Blocks of a run in which its latest lists are looked for: a thousand rounds or so."""
# The runs and their rounds go as one JSON document, so that the statement is the same for any number
# of them.
_CURSORS = func.json_each(bindparam("cursors", type_=JSON)).table_valued("key", "value")
_BLOCKS = (
    select(BlockRecord.run_id, BlockRecord.last, BlockRecord.rounds)
    .join(_CURSORS, BlockRecord.run_id == _CURSORS.c.key)
    .order_by(BlockRecord.run_id, BlockRecord.last)
    .execution_options(yield_per=READ_AT_ONCE)
)
_BLOCKS_AFTER = _BLOCKS.where(BlockRecord.last > cast(cast(_CURSORS.c.value, Text), Integer))


class Figures(NamedTuple):
    """One measure over the committed rounds of a run, as stored with the run.

    Tables of many runs read these instead of the rounds.
    """

    low: float
    high: float
    """The lowest and the highest value; of a measure of test samples both are the value in the round that is
    best by validation, if there is one.
    """
    last: float
    last_round: int
    """The round of `last`: the latest that has the measure."""
    total: float
    first: float
    """The earliest value."""
    judged: float | None = None
    """The measure of validation samples that selects the round of `low` and `high`, there; None if they
    are the lowest and the highest value.
    """

    def updated(self, value: float, round: int, judge: str | None, judged: float | None) -> "Figures":
        """The figures with the `value` of a later round, where the measure `judge` of validation samples
        is `judged`; None without one.
        """
        # JSON has no infinities.
        total = min(max(self.total + value, -float_info.max), float_info.max)
        later = self._replace(last=value, last_round=round, total=total)
        if judge is None and self.judged is None:
            return later._replace(low=min(self.low, value), high=max(self.high, value))
        better = None if judge is None else better_of(judge)
        if better is None or (self.judged is not None and better(self.judged, judged) == self.judged):
            return later
        return later._replace(low=value, high=value, judged=judged)


def updated_figures(
    figures: Document, rounds: Iterable[tuple[int, Mapping[str, float]]]
) -> dict[str, Figures]:
    """`figures` of a run by measure, with further rounds and their measures, in order."""
    found = {measure: Figures(*stored) for measure, stored in figures.items()}
    for round, measures in rounds:
        for measure, value in measures.items():
            judge = selector_of(measure, measures)
            judged = None if judge is None else measures[judge]
            if measure in found:
                found[measure] = found[measure].updated(value, round, judge, judged)
            else:
                found[measure] = Figures(value, value, value, round, value, value, judged)
    return found


def measures_of(row: Document) -> dict[str, float]:
    """The measures of a row that are numbers."""
    values = {**row["extra"], **{column: row[column] for column in COLUMNS}}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


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
    append_rows(session, run_id, [{**report.row(), "committed_at": committed_at} for report in reports])


def after(session: Session, run_id: str, after: int = 0, limit: int = 1_000) -> Sequence[StoredRound]:
    """The rounds of a run that follow round `after`, in order."""
    return after_many(session, {run_id: after}, limit)


def in_chunks(session: Session, run: RunRecord, size: int) -> Iterator[Sequence[StoredRound]]:
    """All rounds of a run, in order, at most `size` at a time."""
    done = 0
    while done < run.done and (rows := after(session, run.id, done, size)):
        yield rows
        done = rows[-1].round


def after_many(session: Session, cursors: Mapping[str, int], limit: int = 1_000) -> Sequence[StoredRound]:
    """The rounds of several runs, each after the round given for it, by run and round.

    At most `limit` in all.
    """
    found: list[StoredRound] = []
    with session.execute(_BLOCKS_AFTER, {"cursors": dict(cursors)}) as blocks:
        for run_id, last, document in blocks:
            rounds = RoundBlock.read(document).rounds(run_id, last)
            found += [round for round in rounds if round.round > cursors[run_id]]
            if len(found) >= limit:
                break
    return found[:limit]


def extra_measures(session: Session, experiment_id: str) -> dict[str, int]:
    """The measures of an experiment beside `COLUMNS`, in order of names, and their number of axes: 1 of
    a list, 2 of a matrix.
    """
    blocks = select(BlockRecord.rounds).join(RunRecord, RunRecord.id == BlockRecord.run_id)
    query = blocks.where(RunRecord.experiment_id == experiment_id)
    found: dict[str, int] = {}
    for document in session.scalars(query.execution_options(yield_per=READ_AT_ONCE)):
        for name, values in RoundBlock.read(document).extra.items():
            found[name] = max(found.get(name, 0), *map(count_axes, values))
    return dict(sorted(found.items()))


def last_lists(session: Session, run_id: str) -> tuple[int, Document] | None:
    """The latest round of a run that has lists or matrices, among its last ones, and these by name."""
    blocks = select(BlockRecord.last, BlockRecord.rounds).where(BlockRecord.run_id == run_id)
    latest = blocks.order_by(BlockRecord.last.desc()).limit(LISTS_WITHIN)
    for last, document in session.execute(latest):
        for row in reversed([*RoundBlock.read(document).rounds(run_id, last)]):
            if lists := {name: value for name, value in row.extra.items() if isinstance(value, list)}:
                return row.round, lists
    return None


def value(session: Session, run: RunRecord, metric: str, round: int) -> float | None:
    """A measure of a run after `round`; of a run that ended before, its last one."""
    if run.done < round:
        figures = session.scalars(select(RunRecord.figures).where(RunRecord.id == run.id)).one()
        return Figures(*figures[metric]).last if metric in figures else None
    blocks = select(BlockRecord.last, BlockRecord.rounds).where(
        BlockRecord.run_id == run.id, BlockRecord.last >= round
    )
    last, document = session.execute(blocks.order_by(BlockRecord.last).limit(1)).one()
    return RoundBlock.read(document).series(metric)[round - last - 1]


def of_runs(session: Session, run_ids: Iterable[str], *metrics: str) -> dict[str, Series]:
    """The curves of these measures for those of the runs that have rounds, by run id."""
    wanted = dict.fromkeys(run_ids, 0)
    parts: defaultdict[str, list[list[Floats]]] = defaultdict(list)
    for run_id, _, document in session.execute(_BLOCKS, {"cursors": wanted}):
        block = RoundBlock.read(document)
        parts[run_id].append([np.array(block.series(metric), np.float64) for metric in metrics])
    return {
        run_id: Series(
            {
                metric: np.concatenate(column)
                for metric, column in zip(metrics, zip(*parts[run_id], strict=True), strict=True)
            }
        )
        for run_id in wanted
        if run_id in parts
    }
