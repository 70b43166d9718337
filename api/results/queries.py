"""Results, closed forms and claims of an experiment, as endpoints and pages query them.

Arms are given by name or index.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_args

from fastapi import Depends, Query

from api.http.problems import InvalidDocumentError
from api.results.claims import claims_of, metrics_of, preset_of
from api.results.summaries import results_of, rows_of
from fedcore.errors import NoClosedFormError
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, experiments
from fedcore.spec import Arm, stored_arms
from fedcore.statistics.summary import HEADLINES, SELECTORS, better_of
from fedq.event_positions import Position
from fedq.results.confirmation import CONFIRMATION
from fedq.results.curves import Window
from fedq.results.presentation import ComparedFigure, TargetCost
from fedq.results.summaries import TOTALS, Metric, by_arm, metric_names
from fedq.results.targets import COLUMNS, with_target
from fedq.schemas import ArmTheory, Claims, Law, Results, Target, Theory

if TYPE_CHECKING:
    from fedcore.theory import closed_forms

TOLD = 20
"""Maximum number of names of arms in an error message."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def arm_of(names: Mapping[str, int], wanted: str, pointer: str) -> int:
    """Return the index of the arm with this name or index; raises InvalidDocumentError."""
    found = names.get(wanted, int(wanted) if _NUMBER.fullmatch(wanted) else -1)
    if found not in names.values():
        close = get_close_matches(wanted, names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        detail = f"must be an arm, by name or index: {join_names(list(names))}; not {wanted!r}{hint}"
        raise InvalidDocumentError.at(pointer, detail)
    return found


def join_names(names: Sequence[str]) -> str:
    """Return the names of the arms, or their range if they are many."""
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
        raise InvalidDocumentError.at(
            "?to_round", f"must be at least `from_round`, {from_round}, not {to_round}"
        )
    return Window(points, from_round, to_round)


Windowed = Annotated[Window, Depends(_window)]


def position_of(text: str, runs: int, pointer: str) -> Position:
    """Return the position of an event or of results; raises InvalidDocumentError."""
    try:
        return Position.parse(text, runs)
    except ValueError as error:
        raise InvalidDocumentError.at(pointer, str(error)) from error


def read_results(  # noqa: PLR0913, PLR0917 - what can be asked for
    database: Database,
    principal: Principal,
    experiment_id: str,
    metrics: Sequence[Metric],
    window: Window,
    baseline: str | None = None,
    target: Target | None = None,
    since: str | None = None,
    by: ComparedFigure | None = None,
) -> Results:
    """Return the results so far, with the curves from a position on. The arms that may be the best are those
    by the figure `by`; None: by the rounds to the target, or the final value where there is none.

    Raises ResourceNotFoundError, and InvalidDocumentError where no arm is called `baseline`, the
    position is not one of this experiment, or there is no target for a cost.
    """
    by = by or ("final" if target is None else "rounds")
    if target is None and by in get_args(TargetCost):
        raise InvalidDocumentError.at("?by", f"{by} are those to a target: add `target=METRIC:VALUE`")
    wanted = dict.fromkeys(
        (*metrics, *TOTALS) if target is None else (*metrics, *TOTALS, target.metric, *COLUMNS)
    )
    with database.reading() as session:
        rows = rows_of(session, experiments.find(session, experiment_id, principal.sees), wanted)
    firsts = [time for series in rows.series.values() for time in series.columns.get(by, ())[:1]]
    if by == "simulated_seconds" and firsts and not any(map(isfinite, firsts)):
        raise InvalidDocumentError.at(
            "?by", "simulated seconds are those of `systems.devices`, which this experiment has none of"
        )
    names = {run.arm_name: run.arm for run in rows.runs}
    place = None if baseline is None else arm_of(names, baseline, "?baseline")
    results = results_of(
        rows,
        metrics,
        window,
        place,
        None if since is None else position_of(since, len(rows.runs), "?since"),
        by,
    )
    if target is None:
        return results
    arms = list(by_arm(rows.runs).values())
    return with_target(
        results, arms, rows.series, target, by, place, confirmed=CONFIRMATION in rows.experiment.tags
    )


def read_claims(database: Database, principal: Principal, experiment_id: str) -> Claims:
    """Return the claims on an experiment with their verdicts so far; raises ResourceNotFoundError."""
    with database.reading() as session:
        experiment = experiments.find(session, experiment_id, principal.sees)
        preset = preset_of(experiment)
        rows = rows_of(session, experiment, metrics_of(preset))
    return claims_of(rows, preset)


THEORY_POINTS = 200
"""Default number of points of a curve."""


def read_theory(
    database: Database, principal: Principal, experiment_id: str, points: int = THEORY_POINTS
) -> Theory:
    """Return the closed form of each arm, with curves of at most `points` rounds.

    Raises ResourceNotFoundError.
    """
    with database.reading() as session:
        experiment = experiments.find(session, experiment_id, principal.sees)
    return Theory(
        experiment_id=experiment_id, arms=[_arm_theory(arm, points) for arm in stored_arms(experiment.spec)]
    )


def _arm_theory(arm: Arm, points: int) -> ArmTheory:
    from fedcore.theory import closed_forms

    try:
        found, reason = _closed_form(closed_forms.predict(arm.spec, points)), None
    except NoClosedFormError as error:
        found, reason = None, str(error)
    return ArmTheory(index=arm.index, name=arm.name, law=found, reason=reason)


def _closed_form(found: "closed_forms.ClosedForm") -> Law:
    return Law(
        formula=found.formula,
        source=found.source,
        rate=found.rate,
        levels={metric: _finite(value) for metric, value in found.levels.items()},
        rounds=list(found.rounds),
        curves={
            metric: [_finite(value) for value in values.tolist()] for metric, values in found.curves.items()
        },
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


EXACT = ("suboptimality", "objective", "distance")
"""Metrics of every problem with a known minimiser."""
UNTESTED = frozenset({"test_loss", "test_accuracy"})
"""Metrics that such a problem lacks."""


class CurveContext(TypedDict):
    """Context of `_curves.html`, besides addresses."""

    metrics: list[str]
    better: Mapping[str, str]
    arms: int
    first_evaluation: int
    """Earliest round after which one of them is evaluated."""


def curve_context(specifications: Collection[Mapping[str, Any]], arms: int) -> CurveContext:
    """Return the metrics to choose from, for this many arms of experiments with these specifications.

    Metrics that most of them have come first, then the most telling ones.
    """
    counts = Counter(metric for specification in specifications for metric in measured(specification))
    metrics = sorted(
        counts,
        key=lambda metric: (
            -counts[metric],
            HEADLINES.index(metric) if metric in HEADLINES else len(HEADLINES),
        ),
    )
    return {
        "metrics": metrics,
        "better": {metric: better.__name__ for metric in metric_names() if (better := better_of(metric))},
        "arms": arms,
        "first_evaluation": min(
            (min(one["evaluation"]["every"], one["rounds"]) for one in specifications), default=1
        ),
    }


def measured(specification: Mapping[str, Any]) -> list[str]:
    """Return the metrics that an experiment measures."""
    asked = [
        measure if isinstance(measure, str) else measure["kind"]
        for measure in specification["evaluation"]["measures"]
    ]
    if specification["evaluation"].get("validation") is not None:
        asked += SELECTORS
    measures = [metric for metric in dict.fromkeys(asked) if metric in metric_names()]
    if specification["problem"]["dataset"]["kind"] in ("quadratic", "least_squares"):
        return [*EXACT, *(metric for metric in measures if metric not in UNTESTED)]
    return measures
