"""Submissions that wait at the same moment are stored together: a transaction costs about as much
for many as for one.

One group is stored at a time. What comes meanwhile waits, and is the next; what comes while nothing
is being stored goes at once. Each is answered after the commit that it is part of. What would keep
the others of a group waiting, or fail them, is stored by itself.

Uploaded data sets in a document, described by their ids: what is stored and run names the very
content.

What `POST /v1/experiments` takes: a specification, or a preset with overrides.
"""

import re
from asyncio import Future, Task, create_task, get_running_loop, shield
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, NamedTuple

from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict

from api.experiments.responses import experiment_answer
from api.http.documents import validate
from api.http.problems import InvalidDocumentError
from fedcore import presets
from fedcore.errors import FedcoreError, PresetNotFoundError, ResourceNotFoundError, SpecificationError
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, Session, audit, datasets, experiments
from fedcore.platform.store.audit import AuditEvent
from fedcore.platform.store.database import wait_briefly
from fedcore.platform.store.experiments import CreatedExperiment, NewExperiment
from fedcore.platform.tracing import traceparent
from fedcore.platform.version import commit, release
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec
from fedcore.spec.limits import ExperimentLimits, check_allowed_models, refuse_excess
from fedcore.spec.sweep import JOINT
from fedq.planning.estimates import memory_needed
from fedq.schemas import Experiment, Flaw

MOST_RUNS = 20
"""More are stored by themselves: they take longer than a group should."""
MOST_AT_ONCE = 64
LOCK_TIMEOUT_MS = 500
"""A group gives up waiting for a lock after this: one of them needs it, and the others do not."""


class Submission(NamedTuple):
    """What is to be stored for a request."""

    order: NewExperiment
    deed: Callable[[str], AuditEvent]
    """What the audit log is to say, by the id of the experiment."""


Outcome = Experiment | FedcoreError


def order_of(
    principal: Principal,
    spec: ExperimentSpec,
    provenance: Mapping[str, Any],
    idempotency_key: str | None,
    request_hash: str | None,
) -> NewExperiment:
    """What the store is asked for, for whoever asks, in the trace of the request."""
    return NewExperiment(
        spec,
        owner=principal.owner,
        key_id=principal.key_id,
        idempotency_key=idempotency_key,
        request_hash=request_hash,
        provenance=provenance,
        traceparent=traceparent(),
        memory_bytes=memory_needed(spec),
    )


class _BatchAbortedError(Exception):
    """Nothing of a group was stored: each is to be stored by itself."""


class SubmissionBatcher:
    """Stores submissions. Belongs to one event loop; changes in place."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[tuple[Submission, Future[Outcome]]] = deque()
        self._storing: Task[None] | None = None

    async def store(self, submission: Submission) -> Experiment:
        """The experiment, once it is on disk; raises what `experiments.create` does."""
        if submission.order.runs <= MOST_RUNS:
            try:
                return await self._together(submission)
            except _BatchAbortedError:
                pass
        return await run_in_threadpool(self._by_itself, submission)

    async def _together(self, submission: Submission) -> Experiment:
        stored: Future[Outcome] = get_running_loop().create_future()
        self._waiting.append((submission, stored))
        if self._storing is None or self._storing.done():
            # In a context of its own: what it does is part of no request's log lines and trace.
            self._storing = create_task(self._store_waiting(), context=Context())
        return _answer(await shield(stored))

    async def _store_waiting(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
            try:
                outcomes = await run_in_threadpool(self._store_group, [submission for submission, _ in group])
            except Exception as error:
                for _, stored in group:
                    stored.set_exception(error)
            else:
                for (_, stored), outcome in zip(group, outcomes, strict=True):
                    stored.set_result(outcome)

    def _store_group(self, submissions: Sequence[Submission]) -> list[Outcome]:
        with self._database.transaction() as session:
            # An error in the commit is none of these: what was asked to be committed may be there,
            # and is not stored again.
            try:
                wait_briefly(session, LOCK_TIMEOUT_MS)
                return _store(session, submissions)
            except Exception as error:
                raise _BatchAbortedError from error

    def _by_itself(self, submission: Submission) -> Experiment:
        with self._database.transaction() as session:
            (outcome,) = _store(session, [submission])
            return _answer(outcome)


def _store(session: Session, submissions: Sequence[Submission]) -> list[Outcome]:
    made = experiments.create_all(session, [submission.order for submission in submissions])
    pairs = zip(submissions, made, strict=True)
    audit.record(
        session,
        *(submission.deed(one.record.id) for submission, one in pairs if isinstance(one, CreatedExperiment)),
    )
    return [one if isinstance(one, FedcoreError) else experiment_answer(session, *one) for one in made]


def _answer(outcome: Outcome) -> Experiment:
    if isinstance(outcome, FedcoreError):
        raise outcome
    return outcome


_Change = Callable[[Any, str], Any]
_PART = re.compile(r"problem\.dataset\.(id|content)(\.|$)")


def describe(document: Any, database: Database, owner: str | None = None, at: str = "") -> Any:
    """`document`, which stands at the pointer `at` of the body, with the `content` of each uploaded
    data set it names.

    Raises SpecificationError for an id that there is not, or not among the data sets of `owner`
    where one is given. What is wrong in other ways is left for the validation to find.
    """

    def dataset(block: Any, pointer: str) -> Any:
        if not isinstance(block, dict) or block.get("kind") != "uploaded":
            return block
        if block.get("id") is None:
            raise SpecificationError(
                f"{pointer}/id", "required: the id of an uploaded data set, returned by POST /v1/datasets"
            )
        return {**block, "content": _content(block["id"], f"{pointer}/id", database, owner)}

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
    for path in block if isinstance(block, dict) else ():
        if _PART.match(path):
            raise SpecificationError(
                f"{pointer}/{path}", "id and content must change together: sweep `problem.dataset` as a whole"
            )


def _changed(block: Any, changes: dict[str, _Change], pointer: str) -> Any:
    """A copy of `block` with these of its fields changed, if it is a block and has them."""
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


def _content(dataset_id: Any, pointer: str, database: Database, owner: str | None) -> Any:
    try:
        with database.reading() as session:
            return datasets.find(session, str(dataset_id), owner).content
    except ResourceNotFoundError as error:
        raise datasets.unknown(pointer, str(dataset_id)) from error


class PresetSubmission(BaseModel):
    """A preset by name, with changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    preset: str
    """Its name, as `GET /v1/presets` lists it."""
    overrides: dict[str, Any] = {}
    """Merged into the preset's specification: blocks merge, null removes, anything else replaces; a
    block whose `kind` changes is replaced whole.
    """


def specification(
    document: Any, database: Database, settings: Settings, owner: str | None = None
) -> tuple[ExperimentSpec, dict[str, Any]]:
    """The specification that `document` submits, its uploaded data sets described, and where it
    came from, for the provenance.

    It may name the data sets of `owner`, or of anybody where none is given.

    Raises InvalidRequestError or SpecificationError with pointers into `document`, also for a model
    by an import path that none of the patterns in `settings` covers (it would run on a worker, and
    is not imported here), and for what is larger than they allow.
    """
    if not (isinstance(document, dict) and "preset" in document):
        return _validated(document, database, settings, owner), code()
    submission = validate(PresetSubmission, document)
    try:
        preset = presets.load(submission.preset)
    except PresetNotFoundError as error:
        raise InvalidDocumentError([Flaw(pointer="/preset", detail=str(error))]) from error
    spec = _validated(
        presets.override(preset.spec, submission.overrides), database, settings, owner, at="/overrides"
    )
    return spec, code() | {
        "preset": preset.name,
        "preset_version": preset.version,
        "overrides": submission.overrides,
    }


def code() -> dict[str, Any]:
    """Which FedQ this is."""
    return {"fedq": release(), "commit": commit()}


def _validated(
    document: Any, database: Database, settings: Settings, owner: str | None, at: str = ""
) -> ExperimentSpec:
    spec = validate(ExperimentSpec, describe(document, database, owner, at), at)
    try:
        check_allowed_models(spec, settings.models_allowed)
        refuse_excess(spec, ExperimentLimits(settings.max_runs, settings.max_rounds, settings.max_parameters))
    except SpecificationError as error:
        raise SpecificationError(at + error.pointer, error.detail) from error
    return spec
