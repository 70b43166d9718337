"""Series: the curves of runs, measure by measure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import JSON, Integer, Text, bindparam, cast, func, select, true
from sqlalchemy.orm import Session

from fedcore.platform.store.blocks import ABSENT, ANCHOR, SIZE
from fedcore.platform.store.rounds import figure
from fedcore.platform.store.tables import BlockRecord, RoundRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# The runs and their rounds go as one JSON document, so that the statement is the same for any number of them.
_CURSORS = func.json_each(bindparam("cursors", type_=JSON)).table_valued("key", "value")
_STORED = BlockRecord.__table__.c
# Past the ORM, which would take longer than the database.
_BLOCKS = (
    select(_STORED.run_id, _STORED.metric, _STORED.first, _STORED["values"])
    .join(_CURSORS, _STORED.run_id == _CURSORS.c.key)
    .where(_STORED.metric.in_(bindparam("metrics", expanding=True)))
)


@dataclass(frozen=True)
class Series:
    """One run's curve of some measures over its rounds 1, 2, ..., T."""

    columns: Mapping[str, Floats]
    """By measure [T]; NaN where a round has none."""

    @property
    def rounds(self) -> range:
        """1, 2, ..., T."""
        return range(1, len(next(iter(self.columns.values()))) + 1)

    def listed(self, metric: str) -> list[float | None]:
        """A measure by round; None where the round has none."""
        import numpy as np

        absent = np.isnan(self.columns[metric])
        if absent.all():
            return [None] * len(absent)
        values: list[float | None] = self.columns[metric].tolist()
        for place in np.flatnonzero(absent):
            values[place] = None
        return values

    def bounds(self, metric: str) -> list[float]:
        """The lowest and the highest value of a measure; none where it has none."""
        import numpy as np

        values = self.columns[metric]
        return [] if np.isnan(values).all() else [float(np.nanmin(values)), float(np.nanmax(values))]

    def ending(self, metric: str) -> list[float | None]:
        """The latest known value of a measure, and that of the last round; None where there is none."""
        import numpy as np

        values = self.columns[metric]
        known = np.flatnonzero(~np.isnan(values))
        if not len(known):
            return [None, None]
        return [float(values[known[-1]]), float(values[-1]) if known[-1] == len(values) - 1 else None]

    def total(self, metric: str) -> float:
        """The sum of a measure over the rounds that have it."""
        import numpy as np

        return float(np.nansum(self.columns[metric]))


def of_runs(session: Session, run_ids: Iterable[str], *metrics: str) -> dict[str, Series]:
    """The curves of these measures for those of the runs that have rounds, by run id."""
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


def _blocks(session: Session, run_ids: Iterable[str], metrics: Sequence[str]) -> dict[str, defaultdict[str, dict[int, bytes]]]:
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
        each = select(*wanted).where(RoundRecord.run_id == key, RoundRecord.round > after).correlate(_CURSORS).offset(0).lateral()
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
