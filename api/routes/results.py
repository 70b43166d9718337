"""`/v1/experiments/{id}/results` and `/figure.svg`: what came out, as JSON, table or picture."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response

from api.access.auth import Reader
from api.dependencies import NO_NUL, ExperimentId, Store
from api.drawing.figures import Horizontal, measured
from api.drawing.pictures import CSV, FIGURE, Form, Looked, picture
from api.problems import InvalidRequestError, responses
from api.results.summaries import METRICS, TOTALS, Metric, results_of
from api.results.tables import Table, to_csv, to_parquet
from api.results.targets import COLUMNS, target_of, with_target
from api.routes.theory import read_theory
from api.schemas import ArmResults, Flaw, Results, Target
from fedcore.access import Principal
from fedcore.errors import NotFoundError
from fedcore.store import Database, experiments, runs, series
from fedcore.summary import HEADLINES, headline

router = APIRouter(prefix="/v1/experiments", tags=["results"])

NUMBER = re.compile(r"[0-9]{1,9}")
TOLD_ARMS = 20
"""Names of arms are listed to those who got one wrong, up to so many."""
JSON, PARQUET = "application/json", "application/vnd.apache.parquet"

Points = Annotated[
    int,
    Query(
        ge=2,
        le=100_000,
        description="Points of a curve, at most: its ends, and what is lowest and highest in each of equal stretches, of mean and band.",
    ),
]
Chosen = Annotated[list[Metric] | None, Query(alias="metric", description="Only this metric; may be given several times. Absent, all.")]
TableName = Annotated[Table, Query(description="For CSV and Parquet: figures over seeds, or curves.")]
Baseline = Annotated[
    str | None, Query(max_length=1_000, pattern=NO_NUL, description="The arm that differences are to, by its name or index; absent, arm 0.")
]
Reach = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=NO_NUL,
        alias="target",
        description="Tell what it took each arm to a value of a metric: rounds, bytes, time; as `test_accuracy:0.9`.",
        examples=["test_accuracy:0.9"],
    ),
]
Accept = Annotated[str | None, Header(include_in_schema=False)]
Drawn = Annotated[Metric | None, Query(description="What is drawn; absent, the first that there is of " + ", ".join(HEADLINES) + ".")]
Overlay = Annotated[bool, Query(description="Lay over what theory says of an arm, where it says something: thin and dotted.")]
Shown = Annotated[
    list[Annotated[str, Query(max_length=1_000, pattern=NO_NUL)]] | None,
    Query(alias="arm", max_length=100, description="Only this arm, by its name or index; may be given several times. Absent, all."),
]
X = Annotated[
    Horizontal, Query(description="What it is drawn over: rounds, megabytes sent in both directions, or seconds on the simulated clock.")
]


@router.get(
    "/{experiment_id}/results",
    response_model=Results,
    responses={
        200: {
            "description": "The results.",
            "content": {CSV: {"schema": {"type": "string"}}, PARQUET: {"schema": {"type": "string", "format": "binary"}}},
        },
        **responses(404, 406, 422),
    },
    summary="Read results",
)
def read_results(  # noqa: PLR0913, PLR0917 - what can be asked for
    principal: Reader,
    experiment_id: ExperimentId,
    database: Store,
    accept: Accept = None,
    points: Points = 2_000,
    metric: Chosen = None,
    table: TableName = "summary",
    baseline: Baseline = None,
    target: Reach = None,
) -> Results | Response:
    """Per arm, over its seeds: best and final of each metric with confidence interval and paired test against a baseline, traffic, curves.

    They may be read at any time; they are final once the experiment's status is. CSV and Parquet hold one figure a line.
    """
    media_type = _acceptable(accept or JSON)
    results = _read(database, principal, experiment_id, metric or METRICS, points, baseline, None if target is None else target_of(target))
    if media_type == JSON:
        return results
    convert = to_csv if media_type == CSV else to_parquet
    return Response(convert(results, table), media_type=media_type)


@router.get(
    "/{experiment_id}/figure.{form}",
    response_class=Response,
    responses=FIGURE,
    summary="Draw a curve",
)
def read_figure(  # noqa: PLR0913, PLR0917 - what can be asked for
    request: Request,
    look: Looked,
    principal: Reader,
    experiment_id: ExperimentId,
    form: Form,
    database: Store,
    metric: Drawn = None,
    x: X = "round",
    points: Points = 1_000,
    theory: Overlay = False,
    arm: Shown = None,
) -> Response:
    """Mean over the seeds, one line per arm, the standard deviation around it; nothing is smoothed. Equal results make equal bytes.

    An arm has the same colour in every picture. The numbers are a link away: in the header `Link`, and in the picture's own metadata.
    """
    results = _read(database, principal, experiment_id, METRICS if metric is None else [metric], points)
    chosen = headline(known(results)) if metric is None else metric
    if metric is not None and metric not in known(results):
        _refuse(_read(database, principal, experiment_id, METRICS, 2), metric)
    check_axis(results, chosen, x)
    if arm is not None:
        shown = [_arm({one.name: one.index for one in results.arms}, wanted, "?arm") for wanted in arm]
        results = results.model_copy(update={"arms": [one for one in results.arms if one.index in shown]})
    said = read_theory(principal, experiment_id, database) if theory else None
    return picture(request, results, chosen, x, form, look, said)


def _read(
    database: Database,
    principal: Principal,
    experiment_id: str,
    metrics: Sequence[Metric],
    points: int,
    baseline: str | None = None,
    target: Target | None = None,
) -> Results:
    wanted = dict.fromkeys((*metrics, *TOTALS) if target is None else (*metrics, *TOTALS, target.metric, *COLUMNS))
    with database.reading() as session:
        experiment = experiments.find(session, experiment_id, principal.sees)
        records = runs.of_experiment(session, experiment_id)
        found = series.of_runs(session, [record.id for record in records], *wanted)
    results = results_of(
        experiment,
        records,
        found,
        metrics,
        points,
        0 if baseline is None else _arm({record.arm_name: record.arm for record in records}, baseline, "?baseline"),
    )
    return results if target is None else with_target(results, records, found, target)


def _arm(names: Mapping[str, int], wanted: str, pointer: str) -> int:
    """The index of the arm with this name or index; raises InvalidRequestError."""
    found = names.get(wanted, int(wanted) if NUMBER.fullmatch(wanted) else -1)
    if found not in names.values():
        raise InvalidRequestError(
            [Flaw(pointer=pointer, detail=f"must be an arm, by name or index: {listed(list(names))}; not {wanted!r}")]
        )
    return found


def listed(names: Sequence[str]) -> str:
    """The arms, by name as long as they are few."""
    return ", ".join(names) if len(names) <= TOLD_ARMS else f"0 to {len(names) - 1}"


def known(results: ArmResults) -> set[str]:
    """The metrics that there are curves of."""
    return {name for arm in results.arms for name in arm.curves}


def _refuse(results: Results, metric: str) -> None:
    """Raises NotFoundError where there are rows, but none with the metric."""
    if others := known(results):
        raise NotFoundError(f"no row of {results.experiment_id} has {metric}; there are {', '.join(sorted(others))}")


def check_axis(results: ArmResults, metric: str, x: Horizontal) -> None:
    """Raises NotFoundError where there are curves, but none can be drawn over x."""
    curves = [arm.curves[metric] for arm in results.arms if metric in arm.curves]
    if curves and not any(measured(curve, x) for curve in curves):
        raise NotFoundError(f"no run of {results.name!r} has a simulated clock; a specification with `systems.devices` has")


def _acceptable(accept: str) -> str:
    """The first media type of an Accept header that there is; raises 406."""
    ranges = sorted((_range(entry) for entry in accept.split(",")), key=lambda entry: -entry[1])
    for media_type, quality in ranges:
        if quality > 0:
            if media_type in (JSON, CSV, PARQUET):
                return media_type
            if media_type in ("*/*", "application/*"):
                return JSON
            if media_type == "text/*":
                return CSV
    raise HTTPException(406, f"Results come as {JSON}, {CSV} or {PARQUET}, not as {accept}.")


def _range(entry: str) -> tuple[str, float]:
    media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
    quality = next((value[2:] for value in parameters if value.startswith("q=")), "1")
    try:
        return media_type, float(quality)
    except ValueError:
        return media_type, 0.0
