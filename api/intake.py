"""Submissions that wait at the same moment are stored together: a transaction costs about as much for many as for one.

One group is stored at a time. What comes meanwhile waits, and is the next; what comes while nothing is being stored goes at once. Each is
answered after the commit that it is part of. What would keep the others of a group waiting, or fail them, is stored by itself.
"""

from asyncio import Future, Task, create_task, get_running_loop, shield
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, NamedTuple

from fastapi.concurrency import run_in_threadpool

from api.answers.experiments import experiment_answer
from fedcore.errors import FedcoreError
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, Session, audit, experiments
from fedcore.platform.store.audit import AuditEntry
from fedcore.platform.store.database import wait_briefly
from fedcore.platform.store.experiments import CreatedExperiment, NewExperiment
from fedcore.platform.tracing import traceparent
from fedcore.spec import ExperimentSpec
from fedq.planning.estimates import memory_needed
from fedq.schemas import Experiment

MOST_RUNS = 20
"""More are stored by themselves: they take longer than a group should."""
MOST_AT_ONCE = 64
LOCK_TIMEOUT_MS = 500
"""A group gives up waiting for a lock after this: one of them needs it, and the others do not."""


class Submission(NamedTuple):
    """What is to be stored for a request."""

    order: NewExperiment
    deed: Callable[[str], AuditEntry]
    """What the audit log is to say, by the id of the experiment."""


Outcome = Experiment | FedcoreError


def order_of(
    principal: Principal, spec: ExperimentSpec, provenance: Mapping[str, Any], idempotency_key: str | None, request_hash: str | None
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


class _ApartError(Exception):
    """Nothing of a group was stored: each is to be stored by itself."""


class Intake:
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
            except _ApartError:
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
            # An error in the commit is none of these: what was asked to be committed may be there, and is not stored again.
            try:
                wait_briefly(session, LOCK_TIMEOUT_MS)
                return _store(session, submissions)
            except Exception as error:
                raise _ApartError from error

    def _by_itself(self, submission: Submission) -> Experiment:
        with self._database.transaction() as session:
            (outcome,) = _store(session, [submission])
            return _answer(outcome)


def _store(session: Session, submissions: Sequence[Submission]) -> list[Outcome]:
    made = experiments.create_all(session, [submission.order for submission in submissions])
    pairs = zip(submissions, made, strict=True)
    audit.record(session, *(submission.deed(one.record.id) for submission, one in pairs if isinstance(one, CreatedExperiment)))
    return [one if isinstance(one, FedcoreError) else experiment_answer(session, *one) for one in made]


def _answer(outcome: Outcome) -> Experiment:
    if isinstance(outcome, FedcoreError):
        raise outcome
    return outcome
