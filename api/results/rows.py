"""Stored rows of an experiment at one moment, from which figures, verdicts and reports are made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedcore.platform.store import Session, curves, runs, search
from fedcore.platform.store.curves import Series
from fedcore.platform.store.tables import ExperimentRecord, RunRecord


class ResultRows(NamedTuple):
    """An experiment with its runs and what they have reported."""

    experiment: ExperimentRecord
    runs: Sequence[RunRecord]
    series: Mapping[str, Series]
    """By run; a run before its first row has none."""
    decisions: int
    """So many its search has made."""


def rows_of(session: Session, experiment: ExperimentRecord, columns: Iterable[str]) -> ResultRows:
    """Read the runs of `experiment` with these columns of each round."""
    records = runs.of_experiment(session, experiment.id)
    decided = search.decided(session, [experiment.id])
    return ResultRows(
        experiment,
        records,
        curves.of_runs(session, [record.id for record in records], *columns),
        decided.get(experiment.id, 0),
    )
