"""`/v1/experiments/{id}/theory`: what closed forms say of an experiment, to lay over what came out."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from api.access.auth import Reader
from api.dependencies import ExperimentId, Store
from api.problems import responses
from api.schemas import ArmTheory, Law, Theory
from fedcore.errors import NoLawError
from fedcore.spec import Arm, ExperimentSpec
from fedcore.store import experiments

if TYPE_CHECKING:
    from fedcore import laws

router = APIRouter(prefix="/v1/experiments", tags=["results"])

Points = Annotated[int, Query(ge=2, le=2_000, description="Rounds of a curve, at most; closer together at the beginning.")]


@router.get("/{experiment_id}/theory", responses=responses(404, 422), summary="Read what theory says")
def read_theory(principal: Reader, experiment_id: ExperimentId, database: Store, points: Points = 200) -> Theory:
    """Per arm the closed form that applies, with its formula and source, and its curves; or what stands in the way of one.

    Known are quadratic and least-squares problems with exact gradients and full participation, under FedAvg, FedProx, FedNova and FedLin.
    """
    with database.reading() as session:
        experiment = experiments.find(session, experiment_id, principal.sees)
    return theory_of(experiment_id, ExperimentSpec.model_validate(experiment.spec), points)


def theory_of(experiment_id: str, spec: ExperimentSpec, points: int) -> Theory:
    """What closed forms say of the arms of `spec`."""
    return Theory(experiment_id=experiment_id, arms=[_arm(arm, points) for arm in spec.arms()])


def _arm(arm: Arm, points: int) -> ArmTheory:
    from fedcore import laws

    try:
        found, reason = _answer(laws.law(arm.spec, points)), None
    except NoLawError as error:
        found, reason = None, str(error)
    return ArmTheory(index=arm.index, name=arm.name, law=found, reason=reason)


def _answer(found: laws.Law) -> Law:
    return Law(
        formula=found.formula,
        source=found.source,
        rate=found.rate,
        levels={metric: _finite(value) for metric, value in found.levels.items()},
        rounds=list(found.rounds),
        curves={metric: [_finite(value) for value in values.tolist()] for metric, values in found.curves.items()},
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
