"""Quotas: what would exceed them is not made, whoever else is just making something with the same key."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from fedcore.access import Scope
from fedcore.errors import QuotaError
from fedcore.store import Database, datasets, experiments, keys, quotas
from fedcore.store.quotas import Quota, Usage
from tests.documents import specification
from tests.store.acts import ONE_RUN, claim, commit, fail, finish, read, write
from tests.store.test_datasets import CONTENT, SIZES

BYTES = 3_000


def made(database: Database, **quota: Any) -> str:
    """A key with this quota; its id."""
    return write(database, keys.create, owner="ann", scope=Scope.SUBMIT, quota=Quota(**quota))[0].id


def submit(database: Database, key_id: str, runs: int = 1) -> str:
    spec = specification(ONE_RUN, seeds=list(range(runs)))
    return write(database, experiments.create, spec, owner="ann", key_id=key_id).id


def upload(database: Database, key_id: str, digest: str) -> str:
    with database.transaction() as session:
        content = CONTENT.model_copy(update={"digest": digest * 64})
        made = datasets.create(session, datasets.new_id(session), content, name="mine", client_sizes=SIZES, size_bytes=BYTES, owner="ann")
        quotas.charge(session, made.id, key_id)
        return made.id


def used(database: Database, key_id: str) -> Usage:
    with database.reading() as session:
        return quotas.usage(session, keys.find(session, key_id))


def test_more_runs_than_may_wait_are_refused_whole_until_some_wait_no_more(database: Database) -> None:
    key_id = made(database, waiting_runs=3)
    experiment = submit(database, key_id, runs=2)
    with pytest.raises(QuotaError, match="4 runs of this key would wait, and 3 may"):
        submit(database, key_id, runs=2)
    assert used(database, key_id).waiting_runs == 2
    claim(database)
    submit(database, key_id, runs=2)
    write(database, experiments.cancel, experiment)
    submit(database, key_id, runs=1)
    assert used(database, key_id).waiting_runs == 3


def test_a_key_without_quotas_and_another_key_are_not_held_up(database: Database) -> None:
    narrow, free = made(database, waiting_runs=0), made(database)
    submit(database, free, runs=50)
    with pytest.raises(QuotaError):
        submit(database, narrow)
    submit(database, "")
    assert used(database, free).waiting_runs == 50


def test_paused_runs_wait_too_and_go_on_without_being_counted_twice(database: Database) -> None:
    key_id = made(database, waiting_runs=2)
    experiment = submit(database, key_id, runs=2)
    write(database, experiments.pause, experiment)
    with pytest.raises(QuotaError):
        submit(database, key_id)
    assert write(database, experiments.resume, experiment).status == "queued"


def test_a_retry_queues_no_more_than_may_wait(database: Database) -> None:
    key_id = made(database, waiting_runs=1)
    experiment = submit(database, key_id)
    fail(database, claim(database))
    submit(database, key_id)
    with pytest.raises(QuotaError, match="2 runs of this key would wait"):
        write(database, experiments.retry, experiment)
    assert read(database, experiments.find, experiment).status == "failed"


def test_seconds_are_spent_for_good_and_then_nothing_more_is_started(database: Database) -> None:
    key_id = made(database, compute_seconds=1.0)
    experiment, paused = submit(database, key_id), submit(database, key_id)
    held = commit(database, claim(database), 4)
    finish(database, held)
    assert used(database, key_id).compute_seconds == 2.0
    write(database, experiments.pause, paused)
    for act in (lambda: submit(database, key_id), lambda: write(database, experiments.resume, paused)):
        with pytest.raises(QuotaError, match=r"has used 2\.0 of the 1\.0 seconds"):
            act()
    write(database, experiments.delete, experiment)
    assert used(database, key_id).compute_seconds == 2.0


def test_data_sets_larger_than_they_may_be_are_refused_until_one_is_deleted(database: Database) -> None:
    key_id = made(database, stored_bytes=2 * BYTES)
    first = upload(database, key_id, "0")
    upload(database, key_id, "1")
    with pytest.raises(QuotaError, match="would take 9,000 bytes, and 6,000 they may"):
        upload(database, key_id, "2")
    write(database, datasets.delete, first)
    upload(database, key_id, "2")
    assert used(database, key_id) == Usage(0, 2 * BYTES, 0.0)


def test_requests_at_once_get_no_more_than_one_after_another(database: Database) -> None:
    key_id = made(database, waiting_runs=5, stored_bytes=5 * BYTES)

    def attempt(number: int) -> None:
        acts: list[Callable[[], str]] = [
            lambda: submit(database, key_id),
            lambda: upload(database, key_id, "0123456789abcdef"[number]),
        ]
        for act in acts:
            with suppress(QuotaError):
                act()

    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(attempt, range(12)))
    assert used(database, key_id) == Usage(5, 5 * BYTES, 0.0)
