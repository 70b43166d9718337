"""`/v1/compare`: arms of any experiments side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.access.auth import Reader
from api.dependencies import NO_NUL, Store
from api.drawing.pictures import FIGURE, Form, Looked, picture
from api.problems import InvalidRequestError, responses
from api.results.summaries import METRICS, TOTALS, Metric, arms_of, by_arm
from api.routes.results import NUMBER, Chosen, Drawn, Points, X, check_axis, known, listed
from api.schemas import Comparison, Flaw, Member
from fedcore import significance, summary
from fedcore.access import Principal
from fedcore.errors import NotFoundError
from fedcore.spec import ExperimentSpec
from fedcore.store import Database, Session, experiments, runs, series
from fedcore.store.series import Series
from fedcore.store.tables import ExperimentRecord, RunRecord
from fedcore.summary import headline

router = APIRouter(prefix="/v1/compare", tags=["results"])

MOST_ARMS = 500
"""In one comparison."""
SHARED = 2
"""Of fewer seeds that two arms have both, their pairs would say nothing of chance."""

Wanted = Annotated[
    list[Annotated[str, Query(max_length=300, pattern=NO_NUL)]],
    Query(
        alias="arm",
        min_length=1,
        max_length=100,
        description="An experiment by its id, with all of its arms, or one of them as `ID:INDEX` or `ID:NAME`; may be given several times.",
        examples=[["exp_01k9x3zq7rh2v8m4t6w0ybe5nc:0", "exp_01k9x3zq7rh2v8m4t6w0ybe5nd"]],
    ),
]
Baseline = Annotated[
    int, Query(ge=0, lt=MOST_ARMS, description="The arm that the others are compared with: its place in this comparison, from 0.")
]


@router.get("", responses=responses(404, 422), summary="Compare arms")
def read_comparison(
    principal: Reader, database: Store, arm: Wanted, metric: Chosen = None, points: Points = 2_000, baseline: Baseline = 0
) -> Comparison:
    """As the results of one experiment, with arms of several: names made unambiguous, differences to one of them.

    Differences are paired by seed where both arms have the same data, partition and participation and share two seeds at least; the
    others are those of independent samples (Welch's t-test), and `members` says which.
    """
    return compare(database, principal, arm, metric or METRICS, points, baseline)


@router.get("/figure.{form}", response_class=Response, responses=FIGURE, summary="Draw a comparison")
def read_comparison_figure(  # noqa: PLR0913, PLR0917 - what can be asked for
    request: Request,
    look: Looked,
    principal: Reader,
    database: Store,
    form: Form,
    arm: Wanted,
    metric: Drawn = None,
    x: X = "round",
    points: Points = 1_000,
) -> Response:
    """As an experiment's figure, of arms of any experiments."""
    found = compare(database, principal, arm, METRICS if metric is None else [metric], points, 0)
    chosen = metric or headline(known(found))
    if metric is not None and metric not in known(found) and any(one.rounds_done for one in found.arms):
        raise NotFoundError(f"no row of these arms has {metric}")
    check_axis(found, chosen, x)
    return picture(request, found, chosen, x, form, look)


def compare(
    database: Database, principal: Principal, wanted: Sequence[str], metrics: Sequence[Metric], points: int, baseline: int
) -> Comparison:
    """The comparison; raises NotFoundError and InvalidRequestError."""
    with database.reading() as session:
        chosen = gather(session, principal, wanted)
        if baseline >= len(chosen):
            raise InvalidRequestError(
                [Flaw(pointer="?baseline", detail=f"must be below {len(chosen)}, the number of arms, not {baseline}")]
            )
        found = series.of_runs(session, [run.id for one in chosen for run in one.runs], *metrics, *TOTALS)
    paired = [one.pairs_with(chosen[baseline], found) for one in chosen]
    arms = arms_of([one.runs for one in chosen], found, metrics, points, baseline, paired)
    names = _names(chosen)
    return Comparison(
        name=" and ".join(dict.fromkeys(one.experiment.name for one in chosen)),
        confidence=summary.CONFIDENCE,
        level=significance.LEVEL,
        baseline=baseline,
        arms=[arm.model_copy(update={"index": place, "name": names[place]}) for place, arm in enumerate(arms)],
        members=[one.member(paired=paired[place]) for place, one in enumerate(chosen)],
        pairing=_words([names[place] for place, same in enumerate(paired) if not same], len(chosen)),
    )


@dataclass(frozen=True)
class Candidate:
    """An arm that is compared."""

    experiment: ExperimentRecord
    runs: Sequence[RunRecord]

    @property
    def arm(self) -> int:
        """Its index in its experiment."""
        return self.runs[0].arm

    @cached_property
    def conditions(self) -> Sequence[object]:
        """What has to be the same for the same seed to mean the same chance."""
        spec = ExperimentSpec.model_validate(self.experiment.spec).arms()[self.arm].spec
        return spec.problem.dataset, spec.problem.partition, spec.participation, spec.systems.availability

    def pairs_with(self, other: "Candidate", found: dict[str, Series]) -> bool:
        """Whether it is compared with `other` seed by seed."""
        if self.experiment.id == other.experiment.id:
            return True
        mine, theirs = ({run.seed for run in one.runs if run.id in found} for one in (self, other))
        return len(mine & theirs) >= SHARED and self.conditions == other.conditions

    def member(self, *, paired: bool) -> Member:
        """Where it is from."""
        record = self.experiment
        return Member(experiment_id=record.id, experiment_name=record.name, status=record.status, arm=self.arm, paired=paired)


def gather(session: Session, principal: Principal, wanted: Iterable[str]) -> list[Candidate]:
    """The arms that are asked for, each once, in that order; raises NotFoundError and InvalidRequestError."""
    chosen: dict[tuple[str, int], Candidate] = {}
    arms: dict[str, list[Candidate]] = {}
    for entry in wanted:
        id, _, arm = entry.partition(":")
        if id not in arms:
            record = experiments.find(session, id, principal.sees)
            groups = by_arm(runs.of_experiment(session, id))
            arms[id] = [Candidate(record, members) for members in groups.values()]
        for one in arms[id] if not arm else [_one(arms[id], arm)]:
            chosen.setdefault((id, one.arm), one)
    if len(chosen) > MOST_ARMS:
        raise InvalidRequestError([Flaw(pointer="?arm", detail=f"must be {MOST_ARMS} arms at most, not {len(chosen)}")])
    return list(chosen.values())


def _one(arms: Sequence[Candidate], wanted: str) -> Candidate:
    names = {one.runs[0].arm_name: one for one in arms}
    if wanted in names:
        return names[wanted]
    if NUMBER.fullmatch(wanted) and int(wanted) < len(arms):
        return arms[int(wanted)]
    raise InvalidRequestError([Flaw(pointer="?arm", detail=f"must be an arm, by name or index: {listed(list(names))}; not {wanted!r}")])


def _names(chosen: Sequence[Candidate]) -> list[str]:
    """The arms' names, with those of their experiments where there are several, and their ids where these are alike."""
    ids: dict[str, set[str]] = {}
    for one in chosen:
        ids.setdefault(one.experiment.name, set()).add(one.experiment.id)
    if len(ids) == 1 and len({one.experiment.id for one in chosen}) == 1:
        return [one.runs[0].arm_name for one in chosen]
    return [
        f"{one.experiment.name}{f' ({one.experiment.id})' if len(ids[one.experiment.name]) > 1 else ''}: {one.runs[0].arm_name}"
        for one in chosen
    ]


def _words(apart: Sequence[str], arms: int) -> str:
    if not apart:
        return "Differences are paired by seed."
    test = "independent samples (Welch's t-test), for want of the same data and participation or of shared seeds"
    if len(apart) == arms - 1:
        return f"Differences are those of {test}."
    return f"Differences are paired by seed, but for those of {test}: {listed(apart)}."
