"""Functions of the resource: read a submission, create, estimate, and answer.

`create_experiment` creates submissions, reproductions and imports alike.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, Field

from api.bundles.service import prepare
from api.http.dependencies import AppState
from api.http.documents import validate
from api.http.problems import InvalidDocumentError
from fedcore import presets
from fedcore.block import describe_fields
from fedcore.errors import PresetNotFoundError, ResourceNotFoundError, SpecificationError, StateConflictError
from fedcore.platform.access import Principal
from fedcore.platform.provenance import describe_code
from fedcore.platform.store import (
    Database,
    Session,
    Status,
    audit,
    datasets,
    experiments,
    progress,
    quotas,
    reproductions,
    search,
    service_metrics,
    wait_reasons,
    workers,
)
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.lifecycle import IMPORTED
from fedcore.platform.store.progress import ArmPoint, RunProgress
from fedcore.platform.store.records import REPRODUCES
from fedcore.platform.store.tables import DatasetRecord, ExperimentRecord, WorkerRecord
from fedcore.platform.tracing import get_traceparent
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec
from fedcore.spec.checks import check_allowed_models
from fedcore.spec.components import find_requirements
from fedcore.spec.digest import specification_sha256
from fedcore.spec.search import Study
from fedcore.spec.sweep import JOINT
from fedcore.statistics.poor_runs import summarise_warnings
from fedq.planning.data import data_warnings, datasets_of, measure_warnings, start_warnings
from fedq.planning.estimates import RunEstimate, estimate_runs, plan
from fedq.planning.evaluation import default_interval
from fedq.planning.seconds import add_seconds
from fedq.planning.work import name_kind
from fedq.schemas import ArmSummary, Experiment, ExperimentSummary, Plan, Progress
from fedq.schemas.base import PresetName

PRESET_ENTRIES = ("preset", "preset_version", "overrides")
"""Entries of a provenance that name the preset of the experiment."""

log = structlog.stdlib.get_logger("fedq.api")


class PresetSubmission(BaseModel):
    """A preset by name, with changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=describe_fields)

    preset: PresetName
    """Its name, as `GET /v1/presets` lists it."""
    overrides: dict[str, Any] = Field(default={}, examples=[{"rounds": 20, "seeds": [0, 1]}])
    """Merged into the preset's specification: blocks merge, null removes, anything else replaces; a
    block whose `kind` changes is replaced whole.
    """


class CreatedAnswer(NamedTuple):
    """Result of `create_experiment`."""

    experiment: Experiment
    is_new: bool
    """False if the same request created it before."""


def create_experiment(database: Database, new: NewExperiment, facts: AuditFacts) -> CreatedAnswer:
    """Store an experiment and its audit entry in one transaction.

    Raises IdempotencyError, QuotaError and SpecificationError, as `experiments.create`.
    """
    with database.transaction() as session:
        record, is_new = experiments.create(session, new)
        audit.record(session, facts, record.id)
        answer = experiment_answer(session, record)
    log.info("experiment submitted", experiment_id=record.id, queue=new.spec.execution.queue)
    return CreatedAnswer(answer, is_new)


def create_once(
    database: Database,
    principal: Principal,
    make: Callable[[], NewExperiment],
    facts: AuditFacts,
    *,
    idempotency_key: str | None,
    request_hash: str,
) -> CreatedAnswer:
    """Store the experiment that `make` returns, unless the same request of the principal did before:
    then `make` is not called, since what the request names may be gone by now. `request_hash` tells it from
    other requests with the same key.

    Raises as `make` and `create_experiment`.
    """
    if idempotency_key is not None:
        with database.transaction() as session:
            made = experiments.find_repeated(session, principal.owner, idempotency_key, request_hash)
            if made is not None:
                audit.record(session, facts, made.id)
                return CreatedAnswer(experiment_answer(session, made), is_new=False)
    new = replace(make(), idempotency_key=idempotency_key, request_hash=request_hash)
    return create_experiment(database, new, facts)


class Submission(NamedTuple):
    """A valid specification with its provenance."""

    spec: ExperimentSpec
    provenance: dict[str, Any]
    estimates: Sequence[RunEstimate] | None = None
    """Estimates by arm, if the specification uses a code bundle; others are estimated when they are
    asked for.
    """

    def with_cheap_evaluation(self, document: Any) -> "Submission":
        """The submission with what its `document` does not say about evaluations: the training loss
        is estimated, and the interval is the default one.
        """
        spec = self.spec.with_estimates()
        if not _gives_interval(document):
            evaluation = spec.evaluation.model_copy(update={"every": default_interval(spec)})
            spec = spec.model_copy(update={"evaluation": evaluation})
        return self._replace(spec=spec)

    @property
    def plan(self) -> Plan:
        """Arms, runs, and their cost."""
        return plan(self.spec, self.estimates)

    @property
    def run_estimates(self) -> Sequence[RunEstimate]:
        """Estimates of a run of each arm."""
        found = estimate_runs(self.spec) if self.estimates is None else self.estimates
        return [*found] * self.spec.arm_count if isinstance(self.spec.search, Study) else found


def _gives_interval(document: Any) -> bool:
    block = document.get("evaluation") if isinstance(document, dict) else None
    return isinstance(block, dict) and "every" in block


def new_submission(principal: Principal, submission: Submission) -> NewExperiment:
    """Return an experiment whose runs are queued, in the trace of the request."""
    estimates = submission.run_estimates
    return NewExperiment(
        submission.spec,
        owner=principal.owner,
        key_id=principal.key_id,
        may_use_all=principal.sees is None,
        provenance=submission.provenance,
        traceparent=get_traceparent(),
        memory_bytes=[estimate.memory_bytes for estimate in estimates],
        work=[
            (name_kind(arm.spec), estimate.work / arm.spec.rounds)
            for arm, estimate in zip(submission.spec.arms(), estimates, strict=True)
        ],
    )


def new_reproduction(state: AppState, principal: Principal, original_id: str) -> NewExperiment:
    """Return the same experiment again, each run with the engine of the original.

    Raises ResourceNotFoundError, and StateConflictError unless the original has succeeded and the packages
    that it uses are installed.
    """
    with state.database.reading() as session:
        original = experiments.find(session, original_id, principal.sees)
        engines = reproductions.engine_choices(session, original_id)
        packages = reproductions.packages(session, original_id)
        absent = reproductions.missing_packages(session, original_id)
    if original.status is not Status.SUCCEEDED:
        raise StateConflictError(
            f"{original.id} is {original.status}; only succeeded experiments can be reproduced"
        )
    if absent:
        raise StateConflictError(f"{original.id} cannot be run again: {'; '.join(absent)}")
    submission = _validated(original.spec, state, principal)
    inherited = dict(original.provenance)
    if IMPORTED in inherited:
        origin = experiments.origin(inherited)
        inherited = {name: origin[name] for name in PRESET_ENTRIES if name in origin}
    provenance = inherited | submission.provenance | {REPRODUCES: original.id}
    new = new_submission(principal, submission._replace(provenance=provenance))
    return replace(new, run_provenance=engines, run_packages=packages)


def read_submission(document: Any, state: AppState, principal: Principal) -> Submission:
    """Return the specification of a new experiment in `document`, with uploaded data sets and code
    bundles resolved, and its provenance. It may name what the principal sees. Evaluations are cheap
    where it does not say otherwise; presets keep theirs.

    Raises InvalidDocumentError or SpecificationError with pointers into `document`, also for a model
    by an import path that no pattern in `settings` allows (it would run on a worker, and is not
    imported here).
    """
    if not (isinstance(document, dict) and "preset" in document):
        return _validated(document, state, principal).with_cheap_evaluation(document)
    submission = validate(PresetSubmission, document)
    try:
        preset = presets.load(submission.preset)
    except PresetNotFoundError as error:
        raise InvalidDocumentError.at("/preset", str(error)) from error
    found = _validated(presets.override(preset.spec, submission.overrides), state, principal, at="/overrides")
    return found._replace(
        provenance=found.provenance
        | {"preset": preset.name, "preset_version": preset.version, "overrides": submission.overrides}
    )


def _validated(document: Any, state: AppState, principal: Principal, at: str = "") -> Submission:
    estimates = None
    described = describe(document, state.database, principal, at)
    if isinstance(described, dict) and described.get("code") is not None:
        spec, estimates = prepare(described, state, principal)
        with state.database.reading() as session:
            experiments.check_uploads(session, spec, principal.sees)
    else:
        spec = validate(ExperimentSpec, described, at)
    try:
        check_allowed_models(spec, state.settings.models_allowed)
    except SpecificationError as error:
        raise SpecificationError(at + error.pointer, error.detail) from error
    return Submission(spec, describe_code(), estimates)


def service_plan(document: Any, state: AppState, principal: Principal) -> Plan:
    """Return the plan of a submission: sizes, and the time, workers and warnings of the service as
    it is now.
    """
    found = read_submission(document, state, principal)
    return add_service_estimates(found.plan, found.spec, state.database, state.settings, principal)


def add_service_estimates(
    wanted: Plan, spec: ExperimentSpec, database: Database, settings: Settings, principal: Principal
) -> Plan:
    """Return the plan of `spec` with its time, its workers and its warnings."""
    queue, seen_s, owner = spec.execution.queue, settings.seen_seconds, principal.sees
    needed = find_requirements(spec)
    where = "on this service" if owner is None else "in your experiments on this service"
    with database.reading() as session:
        serving = [worker for worker in workers.alive(session, seen_s) if queue in worker.queues]
        warnings = [
            *_data_warnings(spec, serving),
            *wait_reasons.obstacles(session, queue, wanted.memory_bytes, needed, seen_s),
            *measure_warnings(spec),
            *start_warnings(spec),
            *quotas.violations(session, principal.key_id, wanted.runs),
        ]
        told = wanted.model_copy(update={"warnings": warnings, "workers": len(serving)})
        return add_seconds(told, spec, lambda kind: service_metrics.recent_rates(session, kind, owner), where)


def _data_warnings(spec: ExperimentSpec, serving: Sequence[WorkerRecord]) -> list[str]:
    present = [worker.datasets for worker in serving if worker.datasets is not None]
    if len(present) < len(serving) or not present:
        return []
    return data_warnings(datasets_of(spec), present, f"no worker of the queue {spec.execution.queue!r} has")


def experiment_answer(session: Session, record: ExperimentRecord) -> Experiment:
    """Return an experiment with its progress and arms."""
    rounds, points = progress.overview(session, record.id)
    last = search.last(session, record.id) if record.spec.get("search") else {}
    summary = summary_answer(record, rounds)
    arms = [_arm(point, last.get(point.arm)) for point in points]
    return Experiment(
        **dict(summary),
        notes=record.notes,
        arms=arms,
        specification=record.spec,
        provenance=made_from(record),
        missing=reproductions.missing(session, record),
    )


def made_from(record: ExperimentRecord) -> dict[str, Any]:
    """Return an experiment's provenance, and the digest of its specification as it is now."""
    return record.provenance | {"specification_sha256": specification_sha256(record.spec)}


def summary_answer(record: ExperimentRecord, rounds: RunProgress) -> ExperimentSummary:
    """Return an experiment as listed."""
    return ExperimentSummary(
        id=record.id,
        name=record.name,
        description=record.description,
        tags=record.tags,
        status=record.status,
        priority=record.priority,
        owner=record.owner,
        created_at=record.created_at,
        updated_at=record.updated_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        error=record.error,
        warning=summarise_warnings(rounds.warnings, sum(rounds.runs.values())),
        starred=record.starred,
        archived=record.archived,
        progress=_progress(rounds),
    )


def _arm(point: ArmPoint, last: search.ArmStanding | None) -> ArmSummary:
    judged = {} if last is None else {"rung": last.round, "value": last.value, "verdict": last.verdict}
    return ArmSummary(index=point.arm, name=point.name, settings=point.settings, **judged)


def _progress(rounds: RunProgress) -> Progress:
    fraction = rounds.done / rounds.rounds if rounds.rounds else 1.0
    return Progress(
        rounds_done=rounds.done,
        rounds_total=rounds.rounds,
        fraction=fraction,
        runs=rounds.runs,
        eta_s=rounds.eta_s,
    )


_Change = Callable[[Any, str], Any]
_PART = re.compile(r"problem\.dataset\.(id|content)(\.|$)")


def describe(document: Any, database: Database, principal: Principal, at: str = "") -> Any:
    """Return `document` with the id and the `content` of each uploaded data set that it names by its
    id, or by the digest in a `content`. A `content` without `description` stays so.

    `at` is its pointer in the body. Raises SpecificationError for a data set that does not exist, or
    that the principal may not read. All other errors are left to validation.
    """

    def dataset(block: Any, pointer: str) -> Any:
        if not isinstance(block, dict) or block.get("kind") != "uploaded":
            return block
        given = block.get("content")
        digest = given.get("digest") if isinstance(given, dict) else None
        if block.get("id") is None and digest is None:
            raise SpecificationError(
                f"{pointer}/id", "required: the id that the upload of the data set has returned"
            )
        record = _dataset(block.get("id"), digest, f"{pointer}/id", database, principal)
        content = dict(record.content)
        if isinstance(given, dict) and given.get("description") is None:
            content.pop("description", None)
        return {**block, "id": record.id, "content": content}

    def problem(block: Any, pointer: str) -> Any:
        return _changed(block, {"dataset": dataset}, pointer)

    def joint(block: Any, pointer: str) -> Any:
        _refuse_parts(block, pointer)
        return _changed(block, {"problem": problem, "problem.dataset": dataset}, pointer)

    def sweep(block: Any, pointer: str) -> Any:
        _refuse_parts(block, pointer)
        return _changed(
            block,
            {"problem": _each(problem), "problem.dataset": _each(dataset), JOINT: _each(joint)},
            pointer,
        )

    return _changed(document, {"problem": problem, "sweep": sweep}, at)


def _refuse_parts(block: Any, pointer: str) -> None:
    for path, values in block.items() if isinstance(block, dict) else ():
        # A block of another kind, such as that of a bundle, may have an id and a content of its own.
        becomes_uploaded = path == "problem.dataset.kind" and "uploaded" in (
            values if isinstance(values, list) else [values]
        )
        if becomes_uploaded or _PART.match(path):
            raise SpecificationError(
                f"{pointer}/{path}", "id and content must change together: sweep `problem.dataset` as a whole"
            )


def _changed(block: Any, changes: dict[str, _Change], pointer: str) -> Any:
    """Return a copy of `block` with these fields changed, if it is a mapping that has them."""
    if not isinstance(block, dict):
        return block
    changed = {
        field: change(block[field], f"{pointer}/{field}")
        for field, change in changes.items()
        if field in block
    }
    return block | changed if changed else block


def _each(change: _Change) -> _Change:
    def change_each(values: Any, pointer: str) -> Any:
        if not isinstance(values, list):
            return values
        return [change(value, f"{pointer}/{index}") for index, value in enumerate(values)]

    return change_each


def _dataset(
    dataset_id: Any, digest: Any, pointer: str, database: Database, principal: Principal
) -> DatasetRecord:
    named = str(dataset_id or ""), str(digest or "")
    try:
        with database.reading() as session:
            return datasets.find_same(session, *named, principal.sees, principal.owner)
    except ResourceNotFoundError as error:
        raise datasets.unknown(pointer, str(dataset_id or digest)) from error
