"""Leases: one process at a time works on a row, until it has finished or its lease expires.

A claim takes a free row for some seconds of the database's clock and raises the row's fence. Every
write of the holder names the fence and is refused once another process has claimed the row. Runs,
webhook deliveries and removals are leased by the same statements; `LeaseTable` names their columns. A
`Claim` is the lease of a run, with all that a worker needs to execute it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, Row, Select, select, update
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import Base, DeliveryRecord, Document, RemovalRecord, RunRecord

Conditions = Sequence[ColumnElement[bool]]
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])


@dataclass(frozen=True, slots=True)
class Lease:
    """Hold of one process on one row."""

    key: str
    fence: int = 0
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseTable:
    """Names of the columns by which the rows of a table are leased.

    A status tells free rows from leased ones. Without one, a row is free once its lease has expired:
    it is created with a lease that expires when it is due.
    """

    record: type[Base]
    key: str
    expiry: str
    fence: str | None = None
    """Column of the fence; without one, writes of a holder whose lease has expired are not refused."""
    holder: str | None = None
    free_status: StrEnum | None = None
    leased_status: StrEnum | None = None

    def free(self) -> Conditions:
        """Conditions of a row that may be claimed."""
        if self.free_status is None:
            return self.expired()
        return [self._column("status") == self.free_status]

    def leased(self) -> Conditions:
        """Conditions of a row with a lease, expired or not."""
        return [] if self.leased_status is None else [self._column("status") == self.leased_status]

    def expired(self) -> Conditions:
        """Conditions of a row whose lease has expired."""
        return [*self.leased(), self._column(self.expiry) <= sql_now()]

    def held(self, lease: Lease) -> Conditions:
        """Conditions of the row of `lease` while no other process has claimed it."""
        named = {self.key: lease.key, self.fence: lease.fence, self.holder: lease.holder}
        return [*self.leased(), *(self._column(name) == value for name, value in named.items() if name)]

    def lock_free(self, query: Query) -> Query:
        """Restrict `query` to free rows and lock them, passing over those just being claimed."""
        return query.where(*self.free()).with_for_update(of=self.record, skip_locked=True)

    def claim(
        self, session: Session, key: str, /, lease_s: float, holder: str | None = None, **values: Any
    ) -> Lease | None:
        """Claim a row for `lease_s` seconds, writing `values`; None if it is not free."""
        columns: dict[str, Any] = {self.expiry: sql_now(lease_s), **values}
        if self.fence is not None:
            columns[self.fence] = self._column(self.fence) + 1
        if self.holder is not None:
            columns[self.holder] = holder
        if self.leased_status is not None:
            columns["status"] = self.leased_status
        claim = update(self.record).where(self._column(self.key) == key, *self.free()).values(columns)
        row = session.execute(claim.returning(self._column(self.fence or self.key))).first()
        return None if row is None else Lease(key, row[0] if self.fence else 0, holder)

    def renew(
        self,
        session: Session,
        lease: Lease,
        /,
        lease_s: float,
        *returning: Any,
        where: Conditions = (),
        **values: Any,
    ) -> Row[Any] | None:
        """Extend a lease to `lease_s` seconds from now; otherwise as `update`."""
        return self.update(
            session, lease, *returning, where=where, **{self.expiry: sql_now(lease_s)}, **values
        )

    def update(
        self, session: Session, lease: Lease, /, *returning: Any, where: Conditions = (), **values: Any
    ) -> Row[Any] | None:
        """Write to a leased row and return columns of it; None if the lease is lost."""
        write = update(self.record).where(*self.held(lease), *where).values(values)
        return session.execute(write.returning(*(returning or [self._column(self.key)]))).first()

    def lock(
        self, session: Session, lease: Lease, /, *columns: Any, where: Conditions = ()
    ) -> Row[Any] | None:
        """Lock a leased row and return columns of it; None if the lease is lost."""
        query = select(*columns).where(*self.held(lease), *where)
        return session.execute(query.with_for_update()).first()

    def revoke(self, session: Session, key: str, /, **values: Any) -> None:
        """End the lease of a locked row, regardless of its holder."""
        session.execute(
            update(self.record).where(self._column(self.key) == key, *self.leased()).values(values)
        )

    def _column(self, name: str) -> Any:
        return getattr(self.record, name)


RUNS = LeaseTable(
    RunRecord,
    key="id",
    expiry="lease_until",
    fence="fence",
    # A database that has lost its last commits may give out a fence twice, but not to the same
    # worker.
    holder="worker",
    free_status=Status.QUEUED,
    leased_status=Status.RUNNING,
)
"""An expired lease is revoked by the reconciler, which decides whether the run is tried again."""

DELIVERIES = LeaseTable(DeliveryRecord, key="id", expiry="due_at", fence="fence")

REMOVALS = LeaseTable(RemovalRecord, key="path", expiry="due_at")
"""Leases of removals, without a fence: removing files twice is harmless."""

ANY_MEMORY = (1 << 63) - 1
"""Memory of a worker without a limit."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A worker as it asks for runs: which of them it may take, and in which order."""

    worker: str
    """Its id."""
    queues: tuple[str, ...]
    """The queues that it serves, in the order in which it takes from them."""
    memory_bytes: int = ANY_MEMORY
    """Memory that runs may take on it."""
    packages: tuple[str, ...] = ()
    """The packages with components that it has, as "name version"."""
    device: str = "cpu"
    """Type of its device."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A run as its worker holds it: its lease, and the facts that the work needs."""

    run_id: str
    experiment_id: str
    worker: str
    claimant: Claimant
    """This worker; in a membership, the worker that helps."""
    fence: int
    """Counts the claims of this run: a higher one makes this one void."""
    spec: Document
    """The experiment's specification, sweep and all."""
    arm: int
    seed: int
    done: int
    """Rounds committed."""
    rounds: int
    checkpoint: str | None
    """Storage key of the state after round `done`; None before the first."""
    until: int
    """Last round to execute: the last of all, or the next rung of its search."""
    model: str | None
    """Storage key of the model of an earlier rung."""
    provenance: Document
    """Provenance of its committed rounds; empty before the first."""
    shortages: int = 0
    """How often memory ran out in it."""
    memory_bytes: int = 0
    """Estimated memory."""
    packages: tuple[str, ...] = ()
    """Installed packages that it uses, as "name version"."""
    traceparent: str | None = None
    """The trace in which the experiment was submitted."""

    @classmethod
    def of(cls, run: RunRecord, spec: Document, claimant: Claimant, traceparent: str | None = None) -> Self:
        """Claim of a run whose row has just become `running`."""
        assert run.worker is not None
        return cls(
            run_id=run.id,
            experiment_id=run.experiment_id,
            worker=run.worker,
            claimant=claimant,
            fence=run.fence,
            spec=spec,
            arm=run.arm,
            seed=run.seed,
            done=run.done,
            rounds=run.rounds,
            checkpoint=run.checkpoint,
            until=run.rounds if run.until is None else run.until,
            model=run.model,
            provenance=run.provenance,
            shortages=run.shortages,
            memory_bytes=run.memory_bytes,
            packages=tuple(json.loads(run.packages or "[]")),
            traceparent=traceparent,
        )

    @property
    def lease(self) -> Lease:
        """The part that every write of the worker names."""
        return Lease(self.run_id, self.fence, self.worker)

    def at(self, done: int, checkpoint: str) -> Self:
        """This claim after the commit of round `done`."""
        return replace(self, done=done, checkpoint=checkpoint)
