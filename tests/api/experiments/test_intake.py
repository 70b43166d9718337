"""Submissions that wait at the same moment: stored together, and each as sure of its own as if it
were alone.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import event
from sqlalchemy.orm import Session

from api.experiments.service import MOST_RUNS, Submission, SubmissionBatcher
from fedcore.errors import QuotaError, SpecificationError
from fedcore.platform.store import Database, audit, datasets
from fedcore.platform.store.audit import AuditEvent
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.idempotency import claim_key
from fedcore.platform.store.tables import IdempotencyRecord
from fedq.schemas import Experiment
from tests.documents import specification
from tests.platform.store.acts import ONE_RUN, on_postgresql, read, write
from tests.platform.store.test_datasets import document, keep
from tests.platform.store.test_making import limited, names, order

LONG_S = 60.0


def submission(asked: NewExperiment) -> Submission:
    return Submission(
        asked,
        lambda target: AuditEvent("POST /v1/experiments", target, 201, asked.owner, asked.key_id, "here"),
    )


def stored(database: Database, orders: Sequence[NewExperiment]) -> list[Experiment | BaseException]:
    """Submit these at one moment."""

    async def ask() -> list[Experiment | BaseException]:
        intake = SubmissionBatcher(database)
        return await asyncio.gather(
            *(intake.store(submission(one)) for one in orders), return_exceptions=True
        )

    return asyncio.run(ask())


@contextmanager
def commits() -> Iterator[list[Session]]:
    """The sessions that commit meanwhile."""
    counted: list[Session] = []

    def count(session: Session) -> None:
        counted.append(session)

    event.listen(Session, "after_commit", count)
    try:
        yield counted
    finally:
        event.remove(Session, "after_commit", count)


def test_what_waits_at_one_moment_is_one_transaction_with_its_entries_in_the_audit_log(
    database: Database,
) -> None:
    with commits() as counted:
        answers = stored(database, [order(f"{place:02}") for place in range(20)])
    assert len(counted) == 1
    assert (
        [answer.name for answer in answers if isinstance(answer, Experiment)]
        == names(database)
        == [f"{place:02}" for place in range(20)]
    )
    entries = read(database, audit.page).items
    assert {entry.target for entry in entries} == {
        answer.id for answer in answers if isinstance(answer, Experiment)
    }
    assert len(entries) == 20


def test_a_submission_of_many_runs_keeps_nobody_waiting(database: Database) -> None:
    many = NewExperiment(specification(ONE_RUN, name="many", seeds=list(range(MOST_RUNS + 1))))
    with commits() as counted:
        stored(database, [order("a"), many, order("b")])
    assert len(counted) == 2
    assert names(database) == ["a", "b", "many"]


def test_what_is_refused_fails_alone(database: Database) -> None:
    key_id = limited(database, "ann", 1)
    asked = [order("a"), *(order("ann", owner="ann", key_id=key_id) for _ in range(2)), order("b")]
    answers = stored(database, asked)
    assert [type(answer) for answer in answers] == [Experiment, Experiment, QuotaError, Experiment]
    assert names(database) == ["a", "ann", "b"]
    assert len(read(database, audit.page).items) == 3


def test_what_fails_a_transaction_fails_alone(database: Database) -> None:
    data = keep(database)
    lost = NewExperiment(specification(document(data)), owner="ann")
    write(database, datasets.delete, data.id)
    answers = stored(database, [order("a"), lost, order("b")])
    assert [type(answer) for answer in answers] == [Experiment, SpecificationError, Experiment]
    assert names(database) == ["a", "b"]


def test_a_commit_of_which_nobody_knows_is_not_tried_again(database: Database) -> None:
    def lose(_: Session) -> None:
        raise ConnectionError("after the commit, before it was answered")

    event.listen(Session, "after_commit", lose)
    try:
        answers = stored(database, [order("a"), order("b")])
    finally:
        event.remove(Session, "after_commit", lose)
    assert [type(answer) for answer in answers] == [ConnectionError] * 2
    assert names(database) == ["a", "b"]


@on_postgresql
def test_a_lock_that_one_waits_for_keeps_no_other_waiting(database: Database) -> None:
    async def ask() -> None:
        intake, loop = SubmissionBatcher(database), asyncio.get_running_loop()
        with database.transaction() as held:
            # Another process is just making this one.
            claim_key(
                held,
                IdempotencyRecord.experiment_id,
                "local",
                "k",
                "0" * 64,
                "exp_elsewhere",
                request="request",
            )
            waits = loop.create_task(intake.store(submission(order("waits", idempotency_key="k"))))
            async with asyncio.timeout(LONG_S):
                free = await asyncio.gather(
                    *(intake.store(submission(order(f"{place}"))) for place in range(5))
                )
            assert not waits.done()
            assert len(free) == 5
            held.rollback()
        assert (await waits).name == "waits"

    asyncio.run(ask())
    assert len(names(database)) == 6
