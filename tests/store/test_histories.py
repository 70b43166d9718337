"""Any history of users, workers and crashes leaves the books in order: rows 1 to done, each once; every status explained."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from fedcore.errors import ConflictError, StaleLeaseError
from fedcore.store import ENDED, Request, Status, experiments, open_database, rounds, runs
from fedcore.store.claim import Claim
from fedcore.store.lifecycle import derived
from tests.store.acts import ATTEMPTS, LEASE_S, QUEUE, WORKER, commit, key, lose, read, submit, write
from tests.store.hooks import data, listen, told

EXAMPLES, STEPS = 40, 40
APPLIED = {Request.NONE: Status.QUEUED, Request.PAUSE: Status.PAUSED, Request.CANCEL: Status.CANCELLED}
lease = strategies.sampled_from([LEASE_S, -1.0])
"""A lease that holds, or that of a worker about to crash."""


@dataclass
class Book:
    """What must be known of a run."""

    experiment_id: str
    status: Status = Status.QUEUED
    done: int = 0
    fence: int = 0
    request: Request = Request.NONE
    attempts: int = 0
    expired: bool = False

    def holds(self, held: Claim) -> bool:
        """Whether this claim is the run's."""
        return self.status is Status.RUNNING and self.fence == held.fence

    def release(self, status: Status) -> None:
        self.status, self.request = status, Request.NONE

    def lose(self, max_attempts: int) -> None:
        """The claim ended badly."""
        hopeless = self.request is Request.NONE and self.attempts >= max_attempts
        self.release(Status.FAILED if hopeless else APPLIED[self.request])


class History(RuleBasedStateMachine):
    """Users and workers in any order; every claim, however old, may be used again."""

    made: Bundle[str] = Bundle("made")
    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self, url: str) -> None:
        super().__init__()
        self.database = open_database(url)
        self.books: dict[str, Book] = {}
        self.hook = listen(self.database)
        self.seen: dict[str, Status] = {}
        self.changes: Counter[tuple[str, str]] = Counter()

    def teardown(self) -> None:
        self.webhooks_were_told_every_change_once()
        self.database.close()

    def webhooks_were_told_every_change_once(self) -> None:
        told_of = Counter(
            (about.get("run_id", about["experiment_id"]), about["status"]) for about in map(data, told(self.database, self.hook))
        )
        assert told_of == self.changes

    def note(self, id: str, status: Status) -> None:
        """Count a change of the status of a run or an experiment; no step changes one twice."""
        if self.seen.get(id) is not status:
            self.seen[id] = status
            self.changes[id, status.value] += 1

    def of(self, experiment_id: str) -> list[Book]:
        return [book for book in self.books.values() if book.experiment_id == experiment_id]

    def goes_through(self, act: Callable[[], Any], *, good: bool) -> bool:
        """Whether `act` for a claim is done: it is refused unless the claim is `good`."""
        if good:
            act()
        else:
            with pytest.raises(StaleLeaseError):
                act()
        return good

    @rule(target=made, seeds=strategies.integers(1, 3))
    def submit(self, seeds: int) -> str:
        experiment = submit(self.database, seeds=list(range(seeds)))
        self.books |= {run.id: Book(experiment.id) for run in read(self.database, runs.of_experiment, experiment.id)}
        return experiment.id

    @rule(target=claims, lease_s=lease)
    def claim(self, lease_s: float) -> Any:
        held = write(self.database, runs.claim, WORKER, [QUEUE], lease_s)
        if held is None:
            assert all(book.status is not Status.QUEUED for book in self.books.values())
            return multiple()
        book = self.books[held.run_id]
        assert (book.status, book.done, book.fence + 1) == (Status.QUEUED, held.done, held.fence)
        book.status, book.fence, book.attempts, book.expired = Status.RUNNING, held.fence, book.attempts + 1, lease_s < 0
        return held

    @rule(target=claims, held=claims, length=strategies.integers(1, 3), lease_s=lease)
    def commit(self, held: Claim, length: int, lease_s: float) -> Any:
        book, length = self.books[held.run_id], min(length, held.rounds - held.done)
        if not length:
            return multiple()
        good = book.holds(held) and book.done == held.done
        if not self.goes_through(lambda: commit(self.database, held, length, lease_s=lease_s), good=good):
            return multiple()
        book.done, book.attempts, book.expired = held.done + length, 0, lease_s < 0
        return held.at(book.done, key(held, length))

    @rule(held=claims, lease_s=lease)
    def renew(self, held: Claim, lease_s: float) -> None:
        book = self.books[held.run_id]
        if self.goes_through(lambda: write(self.database, runs.renew, held, lease_s), good=book.holds(held)):
            book.expired = lease_s < 0

    @rule(held=claims)
    def hand_back(self, held: Claim) -> None:
        book = self.books[held.run_id]
        if self.goes_through(lambda: write(self.database, runs.hand_back, held), good=book.holds(held)):
            book.attempts = max(0, book.attempts - 1)
            book.release(APPLIED[book.request])

    @rule(held=claims)
    def finish(self, held: Claim) -> None:
        book = self.books[held.run_id]
        if self.goes_through(lambda: write(self.database, runs.finish, held, model="model", provenance={}), good=book.holds(held)):
            book.release(Status.SUCCEEDED)

    @rule(held=claims, max_attempts=strategies.integers(1, ATTEMPTS))
    def fail(self, held: Claim, max_attempts: int) -> None:
        book = self.books[held.run_id]
        if self.goes_through(lambda: write(self.database, runs.fail, held, "ValueError: no", max_attempts), good=book.holds(held)):
            book.lose(max_attempts)

    @rule()
    def reconcile(self) -> None:
        taken = {run_id for run_id, book in self.books.items() if book.status is Status.RUNNING and book.expired}
        assert set(lose(self.database)) == taken
        for run_id in taken:
            self.books[run_id].lose(ATTEMPTS)

    @rule(experiment_id=made, wish=strategies.sampled_from([Request.PAUSE, Request.CANCEL]))
    def stop(self, experiment_id: str, wish: Request) -> None:
        try:
            write(self.database, experiments.pause if wish is Request.PAUSE else experiments.cancel, experiment_id)
        except ConflictError:
            return
        for book in self.of(experiment_id):
            if book.status is Status.RUNNING and book.request is not Request.CANCEL:
                book.request = wish
            elif book.status is Status.QUEUED or (book.status is Status.PAUSED and wish is Request.CANCEL):
                book.status = APPLIED[wish]

    @rule(experiment_id=made, wish=strategies.sampled_from([Request.PAUSE, Request.CANCEL]))
    def go_on(self, experiment_id: str, wish: Request) -> None:
        """Undo a pause by `resume`, a cancel by `retry`."""
        try:
            write(self.database, experiments.resume if wish is Request.PAUSE else experiments.retry, experiment_id)
        except ConflictError:
            return
        for book in self.of(experiment_id):
            if book.request is wish:
                book.request = Request.NONE
            elif book.status is APPLIED[wish]:
                book.status = Status.QUEUED
                book.attempts = book.attempts if wish is Request.PAUSE else 0
            elif book.status is Status.FAILED and wish is Request.CANCEL:
                book.status, book.attempts = Status.QUEUED, 0

    @invariant()
    def the_books_are_in_order(self) -> None:
        with self.database.reading() as session:
            for run_id, book in self.books.items():
                run = runs.find(session, run_id)
                found = (run.status, run.done, run.fence, run.request, run.attempts)
                assert found == (book.status, book.done, book.fence, book.request, book.attempts)
                self.note(run_id, run.status)
                assert [row.round for row in rounds.after(session, run_id)] == list(range(1, book.done + 1))
                assert (run.lease_until is not None) == (run.status is Status.RUNNING)
                assert (run.finished_at is not None) == (run.status in ENDED)

    @invariant()
    def statuses_of_experiments_follow_from_their_runs(self) -> None:
        with self.database.reading() as session:
            for experiment_id in {book.experiment_id for book in self.books.values()}:
                books, record = self.of(experiment_id), experiments.find(session, experiment_id)
                statuses = [book.status for book in books]
                counts = {status: statuses.count(status) for status in statuses}
                assert record.status is derived(counts, started=any(book.fence for book in books))
                self.note(experiment_id, record.status)
                assert (record.finished_at is not None) == (record.status in ENDED)


@pytest.mark.slow
def test_any_history_leaves_the_books_in_order(sqlite_template: Path, tmp_path: Path) -> None:
    numbers = count()

    class Fresh(History):
        def __init__(self) -> None:
            super().__init__(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / f'{next(numbers)}.db')}")

    bounds = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, database=None)
    run_state_machine_as_test(Fresh, settings=bounds)
