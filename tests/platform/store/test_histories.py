"""Any history of users, workers and crashes leaves the books in order: rows 1 to done, each once.

Every status explained.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from fedcore.errors import IdempotencyError, ResourceNotFoundError, StaleLeaseError, StateConflictError
from fedcore.platform.store import ENDED, Database, RunRequest, Status, curves, experiments, lifecycle, runs
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.lifecycle import derive_status
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from tests.builders.claims import ATTEMPTS, LEASE_S, checkpoint_key, claimant, commit, lose
from tests.builders.experiments import submit
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import read, write
from tests.builders.webhooks import create_webhook, data_of, pending_deliveries
from tests.platform.store.fair_share_states import APPLIED, ARROWS, Book
from tests.support.databases import cloned_database, copied_file, kept_database

EXAMPLES, STEPS = (400, 80) if os.environ.get("HYPOTHESIS_PROFILE") == "long" else (12, 30)
lease = strategies.sampled_from([LEASE_S, -1.0])
"""A lease that holds, or that of a worker about to crash."""
wishes = strategies.sampled_from([RunRequest.PAUSE, RunRequest.CANCEL])
ACTS = {
    RunRequest.PAUSE: (lifecycle.pause, lifecycle.resume),
    RunRequest.CANCEL: (lifecycle.cancel, lifecycle.retry),
}
"""How each is wished, and taken back."""


class History(RuleBasedStateMachine):
    """Users and workers in any order; every claim, however old, may be used again."""

    made: Bundle[str] = Bundle("made")
    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.books: dict[str, Book] = {}
        self.hook = create_webhook(self.database)
        self.seen: dict[str, Status] = {}
        self.changes: Counter[tuple[str, str]] = Counter()
        self.keyed: dict[str, tuple[str, int]] = {}
        """By idempotency key: the experiment, and how many seeds it has."""
        self.before: dict[str, tuple[Status, int, int]] = {}
        """Of each run, as last seen: status, rounds, fence."""

    def teardown(self) -> None:
        self.webhooks_were_told_every_change_once()

    def webhooks_were_told_every_change_once(self) -> None:
        told_of = Counter(
            (about.get("run_id", about["experiment_id"]), about["status"])
            for about in map(data_of, pending_deliveries(self.database, self.hook))
        )
        assert told_of == self.changes

    def note(self, id: str, status: Status) -> None:
        """Count a change of the status of a run or an experiment; no step changes one twice."""
        if self.seen.get(id) is not status:
            self.seen[id] = status
            self.changes[id, status.value] += 1

    def of(self, experiment_id: str) -> list[Book]:
        return [book for book in self.books.values() if book.experiment_id == experiment_id and not book.gone]

    def waiting(self) -> list[Book]:
        return [book for book in self.books.values() if book.status is Status.QUEUED and not book.gone]

    def goes_through(self, act: Callable[[], Any], *, good: bool) -> bool:
        """Perform `act` for a claim; it must be refused unless the claim is `good`."""
        if good:
            act()
        else:
            with pytest.raises(StaleLeaseError):
                act()
        return good

    @rule(target=made, seeds=strategies.integers(1, 3))
    def submit(self, seeds: int) -> str:
        return self.enter(submit(self.database, seeds=list(range(seeds))))

    def enter(self, experiment: ExperimentRecord) -> str:
        self.books |= {
            run.id: Book(experiment.id) for run in read(self.database, runs.of_experiment, experiment.id)
        }
        return experiment.id

    @rule(target=made, key=strategies.sampled_from("ab"), seeds=strategies.integers(1, 2))
    def submit_once(self, key: str, seeds: int) -> Any:
        """With an idempotency key, which may have been used before."""
        spec = specification(ONE_RUN, seeds=list(range(seeds)))
        new = NewExperiment(spec, idempotency_key=key, request_hash=str(seeds))
        known, count = self.keyed.get(key, (None, seeds))
        if count != seeds:
            with pytest.raises(IdempotencyError):
                write(self.database, experiments.create, new)
            return multiple()
        experiment = write(self.database, experiments.create, new).record
        if known is not None:
            assert experiment.id == known
            return multiple()
        self.keyed[key] = experiment.id, seeds
        return self.enter(experiment)

    @rule(experiment_id=made, priority=strategies.integers(0, 9))
    def prioritise(self, experiment_id: str, priority: int) -> None:
        if self.is_there(
            experiment_id, lambda: write(self.database, experiments.edit, experiment_id, priority=priority)
        ):
            for book in self.of(experiment_id):
                book.priority = priority

    @rule(experiment_id=made)
    def delete(self, experiment_id: str) -> None:
        if self.is_there(experiment_id, lambda: write(self.database, experiments.delete, experiment_id)):
            for book in self.of(experiment_id):
                book.gone = True
            self.keyed = {key: made for key, made in self.keyed.items() if made[0] != experiment_id}

    def is_there(self, experiment_id: str, act: Callable[[], Any]) -> bool:
        """Perform `act` for an experiment; it must be refused where that was deleted, or where it
        is a conflict.
        """
        if not self.of(experiment_id):
            with pytest.raises(ResourceNotFoundError):
                act()
            return False
        try:
            act()
        except StateConflictError:
            return False
        return True

    @rule(target=claims, lease_s=lease)
    def claim(self, lease_s: float) -> Any:
        held = write(self.database, runs.claim, claimant(), lease_s)
        if held is None:
            assert not self.waiting()
            return multiple()
        book = self.books[held.run_id]
        assert book.priority == max(waits.priority for waits in self.waiting())
        assert (book.status, book.done, book.fence + 1) == (Status.QUEUED, held.done, held.fence)
        book.status, book.fence, book.attempts, book.expired = (
            Status.RUNNING,
            held.fence,
            book.attempts + 1,
            lease_s < 0,
        )
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
        return held.at(book.done, checkpoint_key(held, length))

    @rule(held=claims, lease_s=lease)
    def renew(self, held: Claim, lease_s: float) -> None:
        book = self.books[held.run_id]
        if self.goes_through(lambda: write(self.database, runs.renew, held, lease_s), good=book.holds(held)):
            book.expired = lease_s < 0

    @rule(held=claims)
    def hand_back(self, held: Claim) -> None:
        book = self.books[held.run_id]
        if self.goes_through(lambda: write(self.database, runs.release, held), good=book.holds(held)):
            book.attempts = max(0, book.attempts - 1)
            book.release(APPLIED[book.request])

    @rule(held=claims)
    def finish(self, held: Claim) -> None:
        book = self.books[held.run_id]
        good = book.holds(held) and book.done == held.done
        if self.goes_through(
            lambda: write(self.database, runs.finish, held, model="model", provenance={}), good=good
        ):
            book.release(Status.SUCCEEDED)

    @rule(held=claims, max_attempts=strategies.integers(1, ATTEMPTS))
    def fail(self, held: Claim, max_attempts: int) -> None:
        book = self.books[held.run_id]
        if self.goes_through(
            lambda: write(self.database, runs.fail, held, "ValueError: no", max_attempts),
            good=book.holds(held),
        ):
            book.lose(max_attempts)

    @rule()
    def reconcile(self) -> None:
        taken = {
            run_id
            for run_id, book in self.books.items()
            if book.status is Status.RUNNING and book.expired and not book.gone
        }
        assert set(lose(self.database)) == taken
        for run_id in taken:
            self.books[run_id].lose(ATTEMPTS)

    @rule(experiment_id=made, wish=wishes)
    def stop(self, experiment_id: str, wish: RunRequest) -> None:
        if self.is_there(experiment_id, lambda: write(self.database, ACTS[wish][0], experiment_id)):
            for book in self.of(experiment_id):
                book.stop(wish)

    @rule(experiment_id=made, wish=wishes)
    def go_on(self, experiment_id: str, wish: RunRequest) -> None:
        if self.is_there(experiment_id, lambda: write(self.database, ACTS[wish][1], experiment_id)):
            for book in self.of(experiment_id):
                book.go_on(wish)

    @invariant()
    def the_books_are_in_order(self) -> None:
        with self.database.reading() as session:
            found = {
                run.id: run
                for experiment_id in self.there()
                for run in runs.of_experiment(session, experiment_id)
            }
            assert found.keys() == set(runs.ids(session))
            rows: defaultdict[str, list[int]] = defaultdict(list)
            for row in curves.after_many(session, dict.fromkeys(self.books, 0), 10_000):
                rows[row.run_id].append(row.round)
        assert found.keys() == {run_id for run_id, book in self.books.items() if not book.gone}
        for run_id, run in found.items():
            book = self.books[run_id]
            state = (run.status, run.done, run.fence, run.request, run.attempts, run.priority)
            assert state == (book.status, book.done, book.fence, book.request, book.attempts, book.priority)
            assert (run.lease_until is not None) == (run.status is Status.RUNNING)
            assert (run.finished_at is not None) == (run.status in ENDED)
            self.note(run_id, run.status)
            self.moves_along(run)
        assert rows == {run_id: list(range(1, run.done + 1)) for run_id, run in found.items() if run.done}

    def moves_along(self, run: RunRecord) -> None:
        """Statuses go where they may; rounds and fences only grow."""
        status, done, fence = self.before.get(run.id, (run.status, 0, 0))
        assert run.status is status or run.status in ARROWS[status]
        assert run.done >= done
        assert run.fence >= fence
        self.before[run.id] = run.status, run.done, run.fence

    def there(self) -> set[str]:
        return {book.experiment_id for book in self.books.values() if not book.gone}

    @invariant()
    def statuses_of_experiments_follow_from_their_runs(self) -> None:
        with self.database.reading() as session:
            for experiment_id in self.there():
                books, record = self.of(experiment_id), experiments.find(session, experiment_id)
                statuses = [book.status for book in books]
                counts = {status: statuses.count(status) for status in statuses}
                assert record.status is derive_status(counts, started=any(book.fence for book in books))
                self.note(experiment_id, record.status)
                assert (record.finished_at is not None) == (record.status in ENDED)


def emptied(request: pytest.FixtureRequest, kind: str) -> AbstractContextManager[str]:
    """The URL of a migrated database of this kind, without rows."""
    give = request.getfixturevalue
    if kind == "sqlite":
        return copied_file(give("sqlite_template"), give("kept_sqlite_file"))
    return cloned_database(
        give("postgresql_server"), give("kept_postgresql_name"), give("postgresql_template")
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.nightly), "postgresql"])
def test_any_history_leaves_the_books_in_order(request: pytest.FixtureRequest, kind: str) -> None:
    class Fresh(History):
        def __init__(self) -> None:
            self.opened = ExitStack()
            super().__init__(kept_database(self.opened.enter_context(emptied(request, kind))))

        def teardown(self) -> None:
            with self.opened:
                super().teardown()

    bounds = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, database=None)
    run_state_machine_as_test(Fresh, settings=bounds)
