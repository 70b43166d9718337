"""Quotas: what would exceed them is not made, whoever else is just making something with the same
key.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import event, select, text, update

from fedcore.errors import QuotaError
from fedcore.platform.access import Scope
from fedcore.platform.store import (
    Database,
    experiments,
    extension,
    keys,
    lifecycle,
    quotas,
    runs,
    wait_reasons,
    workers,
)
from fedcore.platform.store.datasets import DATASETS
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.quotas import Usage
from fedcore.platform.store.tables import RunRecord
from tests.builders.claims import LEASE_S, QUEUE, WORKER, claim, claimant, commit, commit_slice, fail, finish
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import on_postgresql, read, write
from tests.platform.store.test_datasets import CONTENT, SIZES

BYTES = 3_000


def made(database: Database, **quota: Any) -> str:
    """A key with this quota; its id."""
    terms = {f"max_{name}": most for name, most in quota.items()}
    with database.transaction() as session:
        return keys.create(session, owner="ann", scope=Scope.SUBMIT, **terms)[0].id


def submit(database: Database, key_id: str, runs: int = 1) -> str:
    """A new experiment with so many runs; its id."""
    spec = specification(ONE_RUN, seeds=list(range(runs)))
    return write(database, experiments.create, NewExperiment(spec, owner="ann", key_id=key_id)).record.id


def upload(database: Database, key_id: str, digest: str) -> str:
    with database.transaction() as session:
        content = CONTENT.model_copy(update={"digest": digest * 64})
        made = DATASETS.create(
            session,
            DATASETS.new_id(session),
            content.digest,
            name="mine",
            content=content.model_dump(mode="json"),
            client_sizes=SIZES,
            size_bytes=BYTES,
            owner="ann",
            key_id=key_id,
        )
        quotas.check_stored(session, key_id)
        return made.id


def used(database: Database, key_id: str) -> Usage:
    with database.reading() as session:
        return quotas.usage(session, keys.find(session, key_id))


def test_more_runs_than_may_wait_are_refused_whole_until_some_wait_no_more(database: Database) -> None:
    key_id = made(database, waiting_runs=3)
    experiment = submit(database, key_id, runs=2)
    with pytest.raises(QuotaError, match="4 queued or paused runs, limit 3"):
        submit(database, key_id, runs=2)
    assert used(database, key_id).waiting_runs == 2
    claim(database)
    submit(database, key_id, runs=2)
    write(database, lifecycle.cancel, experiment)
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
    write(database, lifecycle.pause, experiment)
    with pytest.raises(QuotaError):
        submit(database, key_id)
    assert write(database, lifecycle.resume, experiment).status == "queued"


def test_a_retry_queues_no_more_than_may_wait(database: Database) -> None:
    key_id = made(database, waiting_runs=1)
    experiment = submit(database, key_id)
    fail(database, claim(database))
    submit(database, key_id)
    with pytest.raises(QuotaError, match="2 queued or paused runs"):
        write(database, lifecycle.retry, experiment)
    assert read(database, experiments.find, experiment).status == "failed"


def test_seconds_are_spent_for_good_and_then_nothing_more_is_started(database: Database) -> None:
    key_id = made(database, compute_seconds=1.0)
    experiment, paused = submit(database, key_id), submit(database, key_id)
    held = commit(database, claim(database), 4)
    finish(database, held)
    assert used(database, key_id).compute_seconds == 2.0
    write(database, lifecycle.pause, paused)
    for act in (lambda: submit(database, key_id), lambda: write(database, lifecycle.resume, paused)):
        with pytest.raises(QuotaError, match=r"has used 2\.0 of 1\.0 seconds"):
            act()
    write(database, experiments.delete, experiment)
    assert used(database, key_id).compute_seconds == 2.0


@on_postgresql
def test_keys_are_locked_in_one_order_where_runs_of_several_are_deleted(database: Database) -> None:
    key_ids = [made(database) for _ in range(20)]
    experiment = submit(database, key_ids[0], runs=len(key_ids))
    charged: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("UPDATE api_key"):
            charged.extend(value for value in parameters.values() if value in key_ids)

    with database.transaction() as session:
        run_ids = session.scalars(
            select(RunRecord.id).where(RunRecord.experiment_id == experiment).order_by(RunRecord.id)
        ).all()
        for run_id, key_id in zip(run_ids, reversed(key_ids), strict=True):
            session.execute(
                update(RunRecord).where(RunRecord.id == run_id).values(key_id=key_id, seconds=1.0)
            )
        event.listen(session.connection(), "before_cursor_execute", note)
        # As it plans for many rows: groups come in the order of their hashes.
        session.execute(text("SET LOCAL enable_sort = off"))
        experiments.delete(session, experiment)
    assert charged == sorted(key_ids)
    assert {used(database, key_id).compute_seconds for key_id in key_ids} == {1.0}


def test_a_run_whose_key_has_used_its_seconds_is_handed_back_and_waits_until_there_are_more(
    database: Database,
) -> None:
    key_id = made(database, compute_seconds=1.0)
    first, second = submit(database, key_id), submit(database, key_id)
    held = claim(database)
    assert commit_slice(database, held) == "continue"
    held = held.at(1, "key")
    assert commit_slice(database, held) == "yield"
    write(database, runs.release, held.at(2, "key"))
    assert write(database, runs.claim, claimant(), LEASE_S) is None
    other = submit(database, made(database))
    assert claim(database).experiment_id == other

    def told(experiment: str) -> set[str]:
        with database.reading() as session:
            return set(wait_reasons.reasons(session, runs.of_experiment(session, experiment), 60.0).values())

    write(database, workers.seen, WORKER, host="here", pid=1, queues=[QUEUE], device="cpu", run_id=None)
    assert (
        told(first)
        == told(second)
        == {"quota of its key exhausted: 1.0 compute seconds (max_compute_seconds)"}
    )
    write(database, keys.edit, key_id, {"max_compute_seconds": 60.0})
    assert told(first) == set()
    assert {claim(database, f"worker-{number}").experiment_id for number in (2, 3)} == {first, second}


def test_a_batch_takes_no_run_of_a_key_that_has_used_its_seconds(database: Database) -> None:
    key_id = made(database, compute_seconds=1.0)
    submit(database, key_id, runs=3)
    held = commit(database, claim(database), 4)
    assert write(database, runs.claim_batch, held, [0], 7, lease_s=LEASE_S, seen_s=LEASE_S) == []


def test_a_quota_holds_for_runs_that_were_added_to_another_key_s_experiment(database: Database) -> None:
    narrow = made(database, running_runs=0)
    experiment = submit(database, made(database), runs=2)
    write(
        database,
        extension.extend,
        experiment,
        rounds=None,
        seeds=[7, 8],
        measure=lambda spec: [0] * len(spec.arms()),
        key_id=narrow,
    )
    held = claim(database)
    assert len(write(database, runs.claim_batch, held, [0], 7, lease_s=LEASE_S, seen_s=LEASE_S)) == 1
    assert used(database, narrow).running_runs == 0


def test_rounds_that_another_key_adds_are_that_key_s_and_not_the_owner_s(database: Database) -> None:
    """Finished runs, cancelled ones and one that a worker holds; the seconds of earlier rounds stay with the
    key before.
    """
    ana, gus, poor = made(database, compute_seconds=3.0), made(database), made(database, compute_seconds=0.0)
    experiment = submit(database, ana, runs=3)
    finish(database, claim(database))
    commit(database, claim(database))
    longer: dict[str, Any] = {"rounds": 9, "seeds": [], "measure": lambda spec: [0] * len(spec.arms())}
    with pytest.raises(QuotaError, match="max_compute_seconds"):
        write(database, extension.extend, experiment, **longer, key_id=poor)
    assert used(database, ana) == Usage(1, 1, 0, 2.5)
    write(database, extension.extend, experiment, **longer, key_id=gus)
    assert (used(database, ana), used(database, gus)) == (Usage(0, 0, 0, 2.5), Usage(3, 0, 0, 0.0))
    held = claim(database)
    finish(database, held)
    spent = 0.5 * (held.rounds - held.done)
    assert (used(database, ana).compute_seconds, used(database, gus).compute_seconds) == (2.5, spent)
    write(database, lifecycle.cancel, experiment)
    write(database, extension.extend, experiment, **longer | {"rounds": 10}, key_id=ana)
    write(database, lifecycle.retry, experiment)
    write(database, experiments.delete, experiment)
    assert (used(database, ana), used(database, gus)) == (Usage(0, 0, 0, 2.5), Usage(0, 0, 0, spent))


def test_data_sets_larger_than_they_may_be_are_refused_until_one_is_deleted(database: Database) -> None:
    key_id = made(database, stored_bytes=2 * BYTES)
    first = upload(database, key_id, "0")
    upload(database, key_id, "1")
    with pytest.raises(QuotaError, match="9,000 bytes of data sets, code and weights, limit 6,000"):
        upload(database, key_id, "2")
    write(database, DATASETS.delete, first, None)
    upload(database, key_id, "2")
    assert used(database, key_id) == Usage(0, 0, 2 * BYTES, 0.0)


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
    assert used(database, key_id) == Usage(5, 0, 5 * BYTES, 0.0)


def test_runs_over_the_quota_of_running_ones_wait_and_those_of_others_are_taken(database: Database) -> None:
    key_id = made(database, running_runs=1)
    submit(database, key_id, runs=3)
    first = claim(database, "worker-1")
    assert used(database, key_id).running_runs == 1
    assert write(database, runs.claim, claimant("worker-2"), LEASE_S) is None
    other = submit(database, made(database))
    assert claim(database, "worker-2").experiment_id == other
    finish(database, first)
    assert claim(database, "worker-3").experiment_id == first.experiment_id


def test_a_quota_of_running_runs_holds_for_batches_too(database: Database) -> None:
    key_id = made(database, running_runs=3)
    submit(database, key_id, runs=6)
    held = claim(database)
    assert len(write(database, runs.claim_batch, held, [0], 7, lease_s=LEASE_S, seen_s=LEASE_S)) == 2
    assert used(database, key_id).running_runs == 3


def test_workers_that_claim_at_once_do_not_exceed_the_quota_of_running_runs(database: Database) -> None:
    key_id = made(database, running_runs=2)
    submit(database, key_id, runs=8)
    with ThreadPoolExecutor(4) as crowd:
        list(
            crowd.map(
                lambda number: write(database, runs.claim, claimant(f"worker-{number}"), LEASE_S), range(12)
            )
        )
    assert used(database, key_id).running_runs <= 2


@pytest.mark.parametrize(
    ("priority", "turn_over", "control"), [(5, False, "continue"), (5, True, "yield"), (6, False, "yield")]
)
def test_a_run_gives_way_to_its_own_key_s_but_not_to_one_that_no_worker_could_take(
    database: Database, priority: int, turn_over: bool, control: str
) -> None:
    key_id, idle = made(database, running_runs=1), made(database, running_runs=0)
    submit(database, key_id)
    held = claim(database)
    write(
        database,
        experiments.create,
        NewExperiment(specification(ONE_RUN, execution={"priority": 9}), owner="bob", key_id=idle),
    )
    assert commit_slice(database, held, turn_over=True) == "continue"
    write(
        database,
        experiments.create,
        NewExperiment(specification(ONE_RUN, execution={"priority": priority}), owner="ann", key_id=key_id),
    )
    assert commit_slice(database, held.at(1, "key"), turn_over=turn_over) == control


def test_why_runs_wait_is_told_while_they_do(database: Database) -> None:
    key_id = made(database, running_runs=1)
    experiment = submit(database, key_id, runs=2)

    def told() -> set[str]:
        with database.reading() as session:
            return set(wait_reasons.reasons(session, runs.of_experiment(session, experiment), 60.0).values())

    assert told() == {"no worker currently serves the queue 'default'"}
    write(
        database, workers.seen, WORKER, host="here", pid=1, queues=[QUEUE, "gpu"], device="cpu", run_id=None
    )
    assert told() == set()
    held = claim(database)
    assert told() == {"quota of its key reached: 1 running runs, limit 1 (max_running_runs)"}
    write(database, keys.edit, key_id, {"max_running_runs": None})
    assert told() == set()
    finish(database, held)
    finish(database, claim(database))
    assert told() == set()
