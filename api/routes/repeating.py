"""`/v1/experiments/{id}/reproduce` and `/reproduction`: an experiment again, and whether it came out identical."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Response

from api.access.auth import Reader, Submitter
from api.access.deeds import Note
from api.answers import experiment_answer
from api.bodies.submissions import specification
from api.dependencies import Configuration, ExperimentId, IdempotencyKey, Store
from api.planning.estimates import memory_needed
from api.problems import responses
from api.schemas import Experiment, MadeOtherwise, Reproduction, ReproductionOutcome, RunDifference
from api.wakeups import Wake
from fedcore.access import Principal
from fedcore.errors import ConflictError, NotFoundError
from fedcore.spec.digest import specification_sha256
from fedcore.store import ENDED, Database, Session, Status, experiments, reproductions, runs
from fedcore.store.experiments import Order
from fedcore.store.reproductions import ENGINE_CHOICE, Pair
from fedcore.store.tables import ExperimentRecord
from fedcore.tracing import traceparent

router = APIRouter(prefix="/v1/experiments", tags=["results"])

MODEL = "model_sha256"
REPRODUCES = "reproduces"
TOLD = 1_000
"""Runs whose differences are told, at most."""


@router.post(
    "/{experiment_id}/reproduce",
    status_code=201,
    responses={
        201: {"headers": {"Location": {"description": "Where the repetition is.", "schema": {"type": "string"}}}},
        **responses(404, 409, 422),
    },
    summary="Repeat an experiment",
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
    """Submit what an experiment was made from once more, each run with the engine that the original's was carried out with.

    `GET .../reproduction` of the new experiment says whether it came out identical. 409 unless the original has succeeded.
    """
    original = _finished(database, principal, experiment_id)
    spec, code = specification(original.spec, database, settings, principal.sees)
    with database.transaction() as session:
        order = Order(
            spec,
            owner=principal.owner,
            key_id=principal.key_id,
            idempotency_key=idempotency_key,
            request_hash=f"reproduce {original.id}",
            provenance=original.provenance | code | {REPRODUCES: original.id},
            traceparent=traceparent(),
            memory_bytes=memory_needed(spec),
        )
        record, overview = experiments.create(session, order)
        if overview is not None:
            reproductions.follow(session, record.id, original.id)
        note(session, record.id)
        answer = experiment_answer(session, record, overview)
    response.headers["Location"] = f"{router.prefix}/{record.id}"
    wake(spec.execution.queue)
    return answer


@router.get("/{experiment_id}/reproduction", responses=responses(404, 422), summary="Hold a repetition against its original")
def read_reproduction(principal: Reader, experiment_id: ExperimentId, database: Store) -> Reproduction:
    """Whether an experiment made by `POST .../reproduce` came out identical, and if not, where it differs first and what was not the same.

    Compared are all numbers of all rounds but wall-clock times, bit by bit, and the digests of the final models.
    """
    with database.reading() as session:
        here = experiments.find(session, experiment_id, principal.sees)
        if REPRODUCES not in here.provenance:
            raise NotFoundError(f"{here.id} was not made to repeat another; POST /v1/experiments/{here.id}/reproduce repeats it")
        original = experiments.find(session, here.provenance[REPRODUCES], principal.sees)
        return _compared(session, here, original)


def _finished(database: Database, principal: Principal, experiment_id: str) -> ExperimentRecord:
    with database.reading() as session:
        record = experiments.find(session, experiment_id, principal.sees)
    if record.status is not Status.SUCCEEDED:
        raise ConflictError(f"{record.id} is {record.status}: what can be repeated has succeeded")
    return record


def _compared(session: Session, here: ExperimentRecord, original: ExperimentRecord) -> Reproduction:
    pairs = reproductions.pairs(session, here.id, original.id)
    found = [difference for pair in pairs if (difference := _difference(session, pair)) is not None]
    everything = len(runs.of_experiment(session, here.id)) + len(runs.of_experiment(session, original.id))
    ended = all(run.status in ENDED for pair in pairs for run in pair)
    return Reproduction(
        experiment_id=here.id,
        reproduces=original.id,
        outcome=ReproductionOutcome.DIFFERENT if found else ReproductionOutcome.IDENTICAL if ended else ReproductionOutcome.PENDING,
        runs=len(pairs),
        unmatched=everything - 2 * len(pairs),
        rounds=sum(min(run.done for run in pair) for pair in pairs),
        models=sum(_models(pair) is not None for pair in pairs),
        differing=found[:TOLD],
        made_otherwise=_made_otherwise(pairs, specification_sha256(original.spec), specification_sha256(here.spec)),
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
    return None if models is None or models[0] == models[1] else _told(pair, here.done, MODEL, *models)


def _models(pair: Pair) -> tuple[str, str] | None:
    """The digests of the final models; None where a run has none, or goes on."""
    original, here = (run.provenance.get(MODEL) if run.status in ENDED else None for run in pair)
    return None if original is None or here is None else (original, here)


def _told(pair: Pair, round: int, measure: str, original: float | str | None, here: float | str | None) -> RunDifference:
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
        relative=_relative(original, here),
    )


def _relative(original: object, here: object) -> float | None:
    if not (isinstance(original, int | float) and isinstance(here, int | float)):
        return None
    largest = max(abs(original), abs(here))
    # Halved, so that no difference of two numbers is infinite.
    return 2 * abs(original / largest / 2 - here / largest / 2)


def _made_otherwise(pairs: Sequence[Pair], *specifications: str) -> list[MadeOtherwise]:
    """What the provenance of runs that are under way says differently of the original's."""
    found: Counter[tuple[str, str, str]] = Counter()
    if len(set(specifications)) > 1:
        found["specification_sha256", *map(json.dumps, specifications)] = len(pairs)  # type: ignore[index]
    for pair in pairs:
        if pair.here.done:
            original, here = (dict(_leaves(run.provenance)) for run in pair)
            found.update((what, original.get(what, "null"), value) for what, value in here.items() if value != original.get(what, "null"))
    return [MadeOtherwise(what=what, original=original, here=here, runs=count) for (what, original, here), count in found.items()]


def _leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """What a provenance says, by dotted path, as JSON; how an engine was chosen and which model came out are no causes."""
    for name, value in document.items():
        if isinstance(value, Mapping) and name != ENGINE_CHOICE:
            yield from _leaves(value, f"{path}{name}.")
        elif name not in (ENGINE_CHOICE, MODEL):
            yield f"{path}{name}", json.dumps(value)
