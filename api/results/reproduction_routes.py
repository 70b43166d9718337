"""`/v1/experiments/{id}/reproduce` and `/reproduction`: an experiment again, and whether it came
out identical.

Whether an experiment that repeats another came out identical, and if not, where it differs first
and what was not the same.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import Response

from api.experiments.responses import experiment_answer
from api.experiments.service import order_of, specification
from api.http.audit_trail import Note
from api.http.authentication import Reader, Submitter
from api.http.dependencies import Configuration, ExperimentId, IdempotencyKey, Store, Wake
from api.http.problems import responses
from api.http.routing import Router
from fedcore.errors import ResourceNotFoundError, StateConflictError
from fedcore.platform.access import Principal
from fedcore.platform.store import ENDED, Database, Session, Status, experiments, imports, reproductions, runs
from fedcore.platform.store.reproductions import ENGINE_CHOICE, MODEL_SHA256, Pair
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.spec.digest import specification_sha256
from fedq.schemas import Experiment, MadeOtherwise, Reproduction, ReproductionOutcome, RunDifference

TOLD = 1_000
"""Runs whose differences are told, at most."""


def repetition(session: Session, here: ExperimentRecord, original: ExperimentRecord) -> Reproduction:
    """`here` beside what it repeats, as far as both are done."""
    pairs = reproductions.pairs(session, here.id, original.id)
    found = [difference for pair in pairs if (difference := _difference(session, pair)) is not None]
    everything = len(runs.of_experiment(session, here.id)) + len(runs.of_experiment(session, original.id))
    ended = all(run.status in ENDED for pair in pairs for run in pair)
    return Reproduction(
        experiment_id=here.id,
        reproduces=original.id,
        outcome=ReproductionOutcome.DIFFERENT
        if found
        else ReproductionOutcome.IDENTICAL
        if ended
        else ReproductionOutcome.PENDING,
        runs=len(pairs),
        unmatched=everything - 2 * len(pairs),
        rounds=sum(min(run.done for run in pair) for pair in pairs),
        models=sum(_models(pair) is not None for pair in pairs),
        differing=found[:TOLD],
        made_otherwise=_made_otherwise(
            pairs, specification_sha256(original.spec), specification_sha256(here.spec)
        ),
    )


def _difference(session: Session, pair: Pair) -> RunDifference | None:
    row = reproductions.first_difference(session, pair)
    if row is not None:
        return _told(pair, row.round, row.measure, row.original, row.here)
    original, here = pair
    if here.status in ENDED and here.status is not original.status:
        return _told(pair, here.done, "status", original.status, here.status)
    if here.status in ENDED and original.done != here.done:
        return _told(pair, min(original.done, here.done) + 1, "rounds", original.done, here.done)
    models = _models(pair)
    return None if models is None or models[0] == models[1] else _told(pair, here.done, MODEL_SHA256, *models)


def _models(pair: Pair) -> tuple[str, str] | None:
    """The digests of the final models; None where a run has none, or goes on."""
    original, here = (run.provenance.get(MODEL_SHA256) if run.status in ENDED else None for run in pair)
    return None if original is None or here is None else (original, here)


def _told(
    pair: Pair, round: int, measure: str, original: float | str | None, here: float | str | None
) -> RunDifference:
    return RunDifference(
        arm=pair.here.arm,
        arm_name=pair.here.arm_name,
        seed=pair.here.seed,
        run_id=pair.here.id,
        original_run_id=pair.original.id,
        round=round,
        measure=measure,
        original=original,
        here=here,
        relative=relative(original, here),
    )


def relative(original: object, here: object) -> float | None:
    """The difference of two numbers as a share of the larger; None where they are none."""
    if not (isinstance(original, int | float) and isinstance(here, int | float)):
        return None
    largest = max(abs(original), abs(here))
    # Halved, so that no difference of two numbers is infinite.
    return 2 * abs(original / largest / 2 - here / largest / 2)


def _made_otherwise(pairs: Sequence[Pair], *specifications: str) -> list[MadeOtherwise]:
    """Return the differences in provenance between started runs and their originals."""
    found: Counter[tuple[str, str, str]] = Counter()
    if len(set(specifications)) > 1:
        found["specification_sha256", *map(json.dumps, specifications)] = len(pairs)  # type: ignore[index]
    for pair in pairs:
        if pair.here.done:
            original, here = (dict(_leaves(run.provenance)) for run in pair)
            found.update(
                (what, original.get(what, "null"), value)
                for what, value in here.items()
                if value != original.get(what, "null")
            )
    return [
        MadeOtherwise(what=what, original=original, here=here, runs=count)
        for (what, original, here), count in found.items()
    ]


def _leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a provenance by dotted path, as JSON.

    The benchmark of the engine and the digest of the model are left out: neither causes a
    difference.
    """
    for name, value in document.items():
        if isinstance(value, Mapping) and name != ENGINE_CHOICE:
            yield from _leaves(value, f"{path}{name}.")
        elif name not in (ENGINE_CHOICE, MODEL_SHA256):
            yield f"{path}{name}", json.dumps(value)


router = Router(prefix="/v1/experiments", tags=["results"])

REPRODUCES = "reproduces"


@router.post(
    "/{experiment_id}/reproduce",
    status_code=201,
    responses={
        201: {
            "headers": {"Location": {"description": "URL of the reproduction.", "schema": {"type": "string"}}}
        },
        **responses(404, 409, 422),
    },
    summary="Reproduce an experiment",
)
def reproduce(
    principal: Submitter,
    experiment_id: ExperimentId,
    database: Store,
    settings: Configuration,
    response: Response,
    wake: Wake,
    note: Note,
    idempotency_key: IdempotencyKey = None,
) -> Experiment:
    """Submit an experiment again; each run uses the engine of the original run.

    `GET .../reproduction` of the new experiment returns the comparison. 409 unless the original has
    succeeded.
    """
    original = _finished(database, principal, experiment_id)
    spec, code = specification(original.spec, database, settings, principal.sees)
    provenance = _made_from(original.provenance) | code | {REPRODUCES: original.id}
    order = order_of(principal, spec, provenance, idempotency_key, f"reproduce {original.id}")
    with database.transaction() as session:
        record, overview = experiments.create(session, order)
        if overview is not None:
            reproductions.follow(session, record.id, original.id)
        note(session, record.id)
        answer = experiment_answer(session, record, overview)
    response.headers["Location"] = f"{router.prefix}/{record.id}"
    wake(spec.execution.queue)
    return answer


@router.get(
    "/{experiment_id}/reproduction",
    responses=responses(404, 422),
    summary="Compare a reproduction with its original",
)
def read_reproduction(principal: Reader, experiment_id: ExperimentId, database: Store) -> Reproduction:
    """Return the first differences between an experiment created by `POST .../reproduce` and its
    original, and their likely cause.

    All numbers of all rounds except wall-clock times are compared bit by bit, and final models by
    their digests.
    """
    with database.reading() as session:
        here = experiments.find(session, experiment_id, principal.sees)
        if REPRODUCES not in here.provenance:
            raise ResourceNotFoundError(
                f"{here.id} is not a reproduction; POST /v1/experiments/{here.id}/reproduce creates one"
            )
        original = experiments.find(session, here.provenance[REPRODUCES], principal.sees)
        return repetition(session, here, original)


def _made_from(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an original's provenance that its reproduction inherits.

    If the original was imported, this is the preset that it was submitted as there.
    """
    if imports.IMPORTED not in provenance:
        return dict(provenance)
    origin = imports.origin(provenance)
    return {name: origin[name] for name in imports.FOLLOWED if name in origin}


def _finished(database: Database, principal: Principal, experiment_id: str) -> ExperimentRecord:
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
    if record.status is not Status.SUCCEEDED:
        raise StateConflictError(
            f"{record.id} is {record.status}; only succeeded experiments can be reproduced"
        )
    return record
