"""The results of an experiment, as endpoints and pages ask for them.

Arms as people name them: by name or by index.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Depends, Query

from api.http.problems import InvalidDocumentError
from api.results.curves import Window
from api.results.rows import rows_of
from api.results.summaries import TOTALS, Metric, results_of
from api.results.targets import COLUMNS, with_target
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, experiments
from fedq.schemas import Flaw, Results, Target

TOLD = 20
"""Names of arms are listed to those who got one wrong, up to so many."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def arm_of(names: Mapping[str, int], wanted: str, pointer: str) -> int:
    """The index of the arm with this name or index; raises InvalidRequestError."""
    found = names.get(wanted, int(wanted) if _NUMBER.fullmatch(wanted) else -1)
    if found not in names.values():
        detail = f"must be an arm, by name or index: {listed(list(names))}; not {wanted!r}"
        raise InvalidDocumentError([Flaw(pointer=pointer, detail=detail)])
    return found


def listed(names: Sequence[str]) -> str:
    """The arms, by name as long as they are few."""
    return ", ".join(names) if len(names) <= TOLD else f"0 to {len(names) - 1}"


Points = Annotated[
    int,
    Query(
        ge=2,
        le=100_000,
        description=(
            "Points of a curve, at most: its ends, and what is lowest and highest in each of equal stretches,"
            " of mean and band."
        ),
    ),
]
MOST_ROUNDS = 999_999_999
Chosen = Annotated[
    list[Metric] | None,
    Query(alias="metric", description="Only this metric; may be repeated (default: all)."),
]


async def _window(
    points: Points = 2_000,
    from_round: Annotated[
        int,
        Query(ge=1, le=MOST_ROUNDS, description="First round of the curves; statistics cover all rounds."),
    ] = 1,
    to_round: Annotated[
        int | None,
        Query(ge=1, le=MOST_ROUNDS, description="Last round of the curves (default: the last one)."),
    ] = None,
) -> Window:
    if to_round is not None and to_round < from_round:
        raise InvalidDocumentError(
            [Flaw(pointer="?to_round", detail=f"must be at least `from_round`, {from_round}, not {to_round}")]
        )
    return Window(points, from_round, to_round)


Windowed = Annotated[Window, Depends(_window)]


def read_results(
    database: Database,
    principal: Principal,
    experiment_id: str,
    metrics: Sequence[Metric],
    window: Window,
    baseline: str | None = None,
    target: Target | None = None,
) -> Results:
    """Return the results so far.

    Raises ResourceNotFoundError, and InvalidRequestError where no arm is called `baseline`.
    """
    wanted = dict.fromkeys(
        (*metrics, *TOTALS) if target is None else (*metrics, *TOTALS, target.metric, *COLUMNS)
    )
    with database.reading() as session:
        rows = rows_of(session, experiments.find(session, experiment_id, principal.sees), wanted)
    names = {run.arm_name: run.arm for run in rows.runs}
    results = results_of(
        rows, metrics, window, 0 if baseline is None else arm_of(names, baseline, "?baseline")
    )
    return results if target is None else with_target(results, rows, target)
