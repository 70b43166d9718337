"""The results of an experiment, as endpoints and pages ask for them."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from api.results.naming import arm_of
from api.results.rows import rows_of
from api.results.summaries import TOTALS, Metric, results_of
from api.results.targets import COLUMNS, with_target
from api.schemas import Results, Target
from fedcore.access import Principal
from fedcore.store import Database, experiments

Points = Annotated[
    int,
    Query(
        ge=2,
        le=100_000,
        description="Points of a curve, at most: its ends, and what is lowest and highest in each of equal stretches, of mean and band.",
    ),
]
Chosen = Annotated[list[Metric] | None, Query(alias="metric", description="Only this metric; may be given several times. Absent, all.")]


def read_results(
    database: Database,
    principal: Principal,
    experiment_id: str,
    metrics: Sequence[Metric],
    points: int,
    baseline: str | None = None,
    target: Target | None = None,
) -> Results:
    """What came out so far; raises NotFoundError, and InvalidRequestError where no arm is called `baseline`."""
    wanted = dict.fromkeys((*metrics, *TOTALS) if target is None else (*metrics, *TOTALS, target.metric, *COLUMNS))
    with database.reading() as session:
        rows = rows_of(session, experiments.find(session, experiment_id, principal.sees), wanted)
    names = {run.arm_name: run.arm for run in rows.runs}
    results = results_of(rows, metrics, points, 0 if baseline is None else arm_of(names, baseline, "?baseline"))
    return results if target is None else with_target(results, rows, target)
