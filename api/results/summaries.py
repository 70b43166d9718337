"""Results of an experiment from the rows in the database."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from api.experiments.service import made_from
from fedcore.platform.store import Session, curves, runs, search
from fedcore.platform.store import arms as stored_arms
from fedcore.platform.store.arms import StoredParameters
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedcore.statistics import summary
from fedcore.statistics.series import Series
from fedq.event_positions import Position
from fedq.results.confirmation import CONFIRMATION
from fedq.results.curves import Window
from fedq.results.presentation import ComparedFigure
from fedq.results.selection import explain_selection
from fedq.results.summaries import arms_of, best_arms_of, by_arm, data_sources, references_among
from fedq.schemas import Results


class ResultRows(NamedTuple):
    """An experiment with its runs and their rows."""

    experiment: ExperimentRecord
    runs: Sequence[RunRecord]
    series: Mapping[str, Series]
    """By run id; runs without rows are missing."""
    decisions: int
    """Number of decisions of its search."""
    parameters: StoredParameters
    """Settings of its arms."""


def rows_of(session: Session, experiment: ExperimentRecord, columns: Iterable[str]) -> ResultRows:
    """Read the runs of `experiment` with these columns of each round."""
    records = runs.of_experiment(session, experiment.id)
    decided = search.decided(session, [experiment.id])
    return ResultRows(
        experiment,
        records,
        curves.of_runs(session, [record.id for record in records], *columns),
        decided.get(experiment.id, 0),
        stored_arms.settings_of(session, [experiment.id])[experiment.id],
    )


def results_of(
    rows: ResultRows,
    metrics: Collection[str],
    window: Window,
    baseline: int | None = None,
    position: Position | None = None,
    by: ComparedFigure = "final",
) -> Results:
    """Return the results of an experiment for these `metrics`; `rows` contain them and `TOTALS`.

    Curves cover the `window`, and of it only rounds that can have changed after the position
    `position`. The arms that may be the best are those by the figure `by`, and each is beside the
    one with the index `baseline`, if given; of a cost, `with_target` finds them.
    """
    experiment = rows.experiment
    arms = list(by_arm(rows.runs).values())
    references = references_among([rows.parameters.of(arm[0].arm).get("algorithm.kind") for arm in arms])
    return Results(
        experiment_id=experiment.id,
        name=experiment.name,
        status=experiment.status,
        position=str(
            Position.at(experiment.status, [(run.status, run.done) for run in rows.runs], rows.decisions)
        ),
        provenance=made_from(experiment),
        data_sources=data_sources(run.provenance for run in rows.runs),
        confidence=summary.CONFIDENCE,
        parameters=rows.parameters.common,
        arms=[
            arm.model_copy(update={"parameters": rows.parameters.arms.get(arm.index, {})})
            for arm in arms_of(
                arms,
                rows.series,
                metrics,
                window,
                None if position is None else changed_from(arms, rows.runs, position),
                references,
            )
        ],
        best_arms=best_arms_of(
            arms,
            rows.series,
            metrics,
            by,
            baseline,
            confirmed=CONFIRMATION in experiment.tags,
            references=references,
        ),
        selection=explain_selection([experiment.spec], rows.series.values()),
    )


def changed_from(
    arms: Iterable[Sequence[RunRecord]], runs: Sequence[RunRecord], position: Position
) -> list[int]:
    """Return the first round of each arm, given by its runs, whose mean over them can have changed since
    a position of all `runs`, in order of their ids.

    An arm without a change gets the round after its last one.
    """
    before = {run.id: done for run, done in zip(runs, position.rounds, strict=True)}
    starts = []
    for members in arms:
        changed = [min(run.done, before[run.id]) + 1 for run in members if run.done != before[run.id]]
        starts.append(min(changed, default=max(run.done for run in members) + 1))
    return starts
