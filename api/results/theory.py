"""Closed-form predictions for an experiment, arm by arm."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from fedcore.errors import NoClosedFormError
from fedcore.platform.store import Database, experiments
from fedcore.spec import Arm, stored_arms
from fedq.schemas import ArmTheory, Law, Theory

if TYPE_CHECKING:
    from fedcore.platform.access import Principal
    from fedcore.theory import closed_forms

ROUNDS = 200
"""Of a curve, unless told otherwise."""


def read_theory(database: Database, principal: Principal, experiment_id: str, points: int = ROUNDS) -> Theory:
    """Return the closed form of each arm, with curves of at most `points` rounds.

    Raises ResourceNotFoundError.
    """
    with database.reading() as session:
        experiment = experiments.find(session, experiment_id, principal.sees)
    return Theory(
        experiment_id=experiment_id, arms=[_arm(arm, points) for arm in stored_arms(experiment.spec)]
    )


def _arm(arm: Arm, points: int) -> ArmTheory:
    from fedcore.theory import closed_forms

    try:
        found, reason = _answer(closed_forms.predict(arm.spec, points)), None
    except NoClosedFormError as error:
        found, reason = None, str(error)
    return ArmTheory(index=arm.index, name=arm.name, law=found, reason=reason)


def _answer(found: closed_forms.ClosedForm) -> Law:
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
