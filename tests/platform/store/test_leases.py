"""One state machine of leases holds for every table with leases, on both databases."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from fedcore.platform.store import Database, Status, open_database, webhook_deliveries
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.leases import DELIVERIES, RUNS, Lease, LeaseTable
from tests.builders.claims import LEASE_S
from tests.builders.experiments import run_of, submit
from tests.builders.transactions import on_postgresql, read, write
from tests.builders.webhooks import create_webhook

HOLDERS = strategies.sampled_from(["worker-1", "worker-2"])
LEASES_S = strategies.sampled_from([LEASE_S, -1.0])
"""A lease that holds, or one that has expired."""


@dataclass
class ExpectedRow:
    """State of a row according to the leases taken so far."""

    fence: int = 0
    held_by: Lease | None = None
    expired: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Subject:
    """A leased table, and the values that a released row and an ended row have there; None: it is
    deleted when it ends.
    """

    table: LeaseTable
    create: Callable[[Database], str]
    released: dict[str, Any]
    ended: dict[str, Any] | None
    free_by_expiry: bool


def new_run(database: Database) -> str:
    return run_of(database, submit(database)).id


def new_delivery(database: Database) -> str:
    return write(database, webhook_deliveries.ping, create_webhook(database, owner=uuid4().hex).id).id


SUBJECTS = {
    "runs": Subject(
        RUNS,
        new_run,
        released={"status": Status.QUEUED, "lease_until": None},
        ended={"status": Status.SUCCEEDED, "lease_until": None},
        free_by_expiry=False,
    ),
    "deliveries": Subject(
        DELIVERIES,
        new_delivery,
        released={"due_at": sql_now(-1.0)},
        ended=None,
        free_by_expiry=True,
    ),
}


class LeaseMachine(RuleBasedStateMachine):
    """Holders claim, renew, release and end rows in any order; any lease may be used again."""

    leases: Bundle[Lease | None] = Bundle("leases")

    def __init__(self, database: Database, subject: Subject) -> None:
        super().__init__()
        self.database, self.subject, self.table = database, subject, subject.table
        self.rows: dict[str, ExpectedRow] = {}

    @initialize()
    def create_two_rows(self) -> None:
        for _ in range(2):
            self.rows[self.subject.create(self.database)] = ExpectedRow()

    def is_free(self, row: ExpectedRow) -> bool:
        return not row.ended and (row.held_by is None or (self.subject.free_by_expiry and row.expired))

    @rule(target=leases, place=strategies.integers(0, 1), holder=HOLDERS, lease_s=LEASES_S)
    def claim(self, place: int, holder: str, lease_s: float) -> Lease | None:
        key = sorted(self.rows)[place]
        row = self.rows[key]
        lease = write(self.database, self.table.claim, key, lease_s, holder)
        if not self.is_free(row):
            assert lease is None
            return None
        assert lease == Lease(key, row.fence + 1, holder)
        row.fence, row.held_by, row.expired = row.fence + 1, lease, lease_s < 0
        return lease

    @rule(lease=leases, lease_s=LEASES_S)
    def renew(self, lease: Lease | None, lease_s: float) -> None:
        if lease is not None and self.goes_through(lease, self.table.renew, lease_s):
            self.rows[lease.key].expired = lease_s < 0

    @rule(lease=leases)
    def lock(self, lease: Lease | None) -> None:
        if lease is not None:
            self.goes_through(lease, self.table.lock, self.column("fence"))

    @rule(lease=leases)
    def release(self, lease: Lease | None) -> None:
        if lease is not None and self.goes_through(lease, self.table.update, **self.subject.released):
            self.let_go(self.rows[lease.key])

    @rule(lease=leases)
    def end(self, lease: Lease | None) -> None:
        values = self.subject.ended
        act = self.delete if values is None else self.table.update
        if lease is not None and self.goes_through(lease, act, **(values or {})):
            self.rows[lease.key].ended = True

    def delete(self, session: Session, lease: Lease) -> Any:
        gone = delete(self.table.record).where(*self.table.held(lease))
        return session.execute(gone.returning(self.column(self.table.key))).first()

    @rule()
    def revoke_expired(self) -> None:
        """As the reconciler does with runs."""
        for key in self.found(self.table.expired()):
            row = self.rows[key]
            if row.held_by is not None:
                assert row.expired
                write(self.database, self.table.revoke, key, **self.subject.released)
                self.let_go(row)

    def let_go(self, row: ExpectedRow) -> None:
        """A free row of deliveries is one with an expired lease, which its last holder may use."""
        row.expired = True
        if not self.subject.free_by_expiry:
            row.held_by = None

    def goes_through(self, lease: Lease, act: Callable[..., Any], *given: Any, **values: Any) -> bool:
        """Perform `act`; it must be refused unless this lease is the last one of a leased row."""
        row = self.rows[lease.key]
        done = write(self.database, act, lease, *given, **values) is not None
        assert done == (row.held_by == lease and not row.ended)
        return done

    def column(self, name: str) -> Any:
        return getattr(self.table.record, name)

    def found(self, conditions: Any) -> set[str]:
        """The rows of this example that meet the conditions."""
        key = self.column(self.table.key)
        query = select(key).where(*conditions, key.in_(self.rows))
        return set(read(self.database, lambda session: session.scalars(query).all()))

    @invariant()
    def the_database_agrees(self) -> None:
        key, fence = self.column("id"), self.column("fence")
        query = select(key, fence).where(key.in_(self.rows))
        rows = read(self.database, lambda session: session.execute(query).all())
        assert {tuple(row) for row in rows} == {
            (name, row.fence)
            for name, row in self.rows.items()
            if not (row.ended and self.subject.ended is None)
        }
        assert self.found(self.table.free()) == {name for name, row in self.rows.items() if self.is_free(row)}
        for name, row in self.rows.items():
            if row.held_by is not None:
                assert self.found(self.table.held(row.held_by)) == (set() if row.ended else {name})


@pytest.mark.parametrize("examples", [4, pytest.param(15, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_leases_of_every_table_follow_one_state_machine(
    database: Database, subject: str, examples: int
) -> None:
    class Machine(LeaseMachine):
        def __init__(self) -> None:
            super().__init__(database, SUBJECTS[subject])

    bounds = settings(max_examples=examples, stateful_step_count=25, database=None)
    run_state_machine_as_test(Machine, settings=bounds)


@on_postgresql
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_row_that_is_just_being_claimed_is_passed_over(
    database: Database, database_url: str, subject: str
) -> None:
    table, create = SUBJECTS[subject].table, SUBJECTS[subject].create
    first, second = create(database), create(database)
    query = table.lock_free(select(getattr(table.record, table.key)).order_by(table.key).limit(1))
    other = open_database(database_url)
    with database.transaction() as session, other.transaction() as beside:
        assert (session.scalar(query), beside.scalar(query)) == (first, second)
    other.close()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_lease_expires_by_the_clock_of_the_database(database: Database, subject: str) -> None:
    table, key = SUBJECTS[subject].table, SUBJECTS[subject].create(database)
    write(database, table.claim, key, LEASE_S, "worker-1")
    query = select(getattr(table.record, table.key)).where(*table.expired())
    assert key not in read(database, lambda session: session.scalars(query).all())
    past = update(table.record).values({table.expiry: sql_now(-0.001)})
    write(database, lambda session: session.execute(past))
    assert key in read(database, lambda session: session.scalars(query).all())
