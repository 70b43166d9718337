"""Disks that are full and stores that fail: a worker waits, or lets go of the run with a reason,
and no row and no bit is lost.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, cycle

import pytest

from fedcore.errors import ResourceNotFoundError
from fedcore.platform.store import Status, experiments, lifecycle, runs
from fedcore.platform.store.backoff import MAX_ATTEMPTS
from fedcore.platform.store.leases import Claim
from fedcore.simulation.simulation import Simulation
from tests.builders.claims import claimant
from tests.builders.specifications import merged, specification
from tests.support import faulty
from tests.support.faulty import FaultyFileSystem
from tests.support.s3 import S3, Fault
from tests.workers.deployment import EXPERIMENT, Deployment, assert_undisturbed
from tests.workers.throttled_worker import SHORT_SLICES
from workers.claimed_run import Pacing
from workers.simulations import Checkpoints

SHORT = merged(EXPERIMENT, {"rounds": 12})
HASTY = replace(SHORT_SLICES, retry_every_s=0.001)
"""Attempts follow one another at once, and slices are short."""
IMPATIENT, PATIENT = replace(HASTY, retry_s=0), replace(HASTY, retry_s=3_600)
FULL_BYTES = 20_000
"""Files may be this large on a full disk: a log's are smaller, a checkpoint's larger."""


@pytest.fixture
def store(embedded: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment whose storage is an object store that goes wrong when told to."""
    for name, value in (
        ("store", {}),
        ("pseudo_dirs", ["", "/bucket"]),
        ("on_write", FaultyFileSystem.on_write),
        ("away", False),
    ):
        monkeypatch.setattr(FaultyFileSystem, name, value)
    return embedded.with_settings(storage_url="faulty://bucket", slice_seconds=0.001)


@contextmanager
def full_disk() -> Iterator[None]:
    """The system refuses this process all but small files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def work(deployment: Deployment, pacing: Pacing = HASTY) -> None:
    """Play what waits, in this process."""
    with deployment.runner(pacing=pacing) as runner:
        runner.work()


def faults(path_has: str, *kinds: faulty.Fault | None) -> None:
    """From now on these happen in turn to the writes of paths that have `path_has` in them."""
    coming = cycle(kinds)
    FaultyFileSystem.on_write = lambda path: next(coming) if path_has in path else None


def test_a_store_that_fails_again_and_again_loses_nothing_and_costs_no_attempt(store: Deployment) -> None:
    experiment = store.submit(SHORT, nudge=False)
    faults("", None, faulty.refused, faulty.timed_out, None, faulty.broken_off, faulty.half_written)
    work(store)
    run = store.run(experiment)
    assert_undisturbed(store, run)
    assert run.fence == 1
    assert len(store.storage.keys(run.id)) == 3, "two checkpoints and the model"


@pytest.mark.slow
def test_an_s3_server_that_fails_every_third_request_loses_nothing_and_costs_no_attempt(
    embedded: Deployment, s3: S3
) -> None:
    deployment = embedded.with_settings(storage_url=f"s3://{s3.bucket()}/fedq", slice_seconds=0.001)
    experiment = deployment.submit(SHORT, nudge=False)
    s3.fail(*set(Fault) - {Fault.SLOW}, share=0.33)
    work(deployment)
    s3.fail()
    run = deployment.run(experiment)
    assert_undisturbed(deployment, run)
    assert run.fence == 1
    names = [key.rpartition("/")[2] for key in deployment.storage.keys(run.id)]
    assert [name for name in names if name.startswith("model")] == ["model-1.safetensors"]


@pytest.mark.parametrize("deployment", [("postgresql", "redis")], indirect=True, ids=["production"])
def test_a_disk_that_is_full_is_waited_for_and_named_where_it_stays_so(deployment: Deployment) -> None:
    experiment, asked = deployment.submit(SHORT, nudge=False), count()
    deployment = deployment.with_settings(slice_seconds=0.001)

    def freed() -> bool:
        """Asked between rounds, and by a worker that waits: some space is freed after a while."""
        if next(asked) == 5:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )
        return deployment.run(experiment).done >= 8

    with full_disk(), deployment.runner(stopping=freed, pacing=HASTY) as runner:
        runner.work()
    handed_back = deployment.run(experiment)
    assert (handed_back.status, handed_back.fence, handed_back.error) == (Status.QUEUED, 1, None)
    with full_disk():
        work(deployment, IMPATIENT)
    failed = deployment.run(experiment)
    assert (failed.status, failed.done, failed.attempts) == (Status.FAILED, handed_back.done, MAX_ATTEMPTS)
    assert failed.error is not None
    assert failed.error.startswith("the storage is full: ")
    assert not list((deployment.folder / "storage").rglob(".*")), (
        "what was written in part keeps the disk full"
    )
    with deployment.database.transaction() as session:
        lifecycle.retry(session, experiment)
    work(deployment)
    assert_undisturbed(deployment, deployment.run(experiment))


def test_a_model_that_cannot_be_stored_fails_a_run_that_keeps_its_rounds_and_ends_when_retried(
    store: Deployment,
) -> None:
    experiment = store.submit(SHORT, nudge=False)
    faults("model-", faulty.refused)
    work(store, IMPATIENT)
    failed = store.run(experiment)
    assert (failed.status, failed.done, failed.model) == (Status.FAILED, SHORT["rounds"], None)
    assert failed.error is not None
    assert "the storage failed" in failed.error
    assert "model-" in failed.error
    faults("model-", faulty.refused, faulty.half_written, None)
    with store.database.transaction() as session:
        lifecycle.retry(session, experiment)
    work(store)
    assert_undisturbed(store, store.run(experiment))


def test_a_store_that_is_away_when_a_run_is_taken_up_sends_it_back_and_not_to_its_start(
    store: Deployment,
) -> None:
    experiment = store.submit(SHORT, nudge=False)
    with store.runner(stopping=lambda: store.run(experiment).done >= 5, pacing=HASTY) as runner:
        runner.work()
    done = store.run(experiment).done
    FaultyFileSystem.away = True
    work(store, IMPATIENT)
    failed = store.run(experiment)
    assert (failed.status, failed.done, failed.fence) == (Status.FAILED, done, 1 + MAX_ATTEMPTS)
    assert "could not be listed" in (failed.error or "")
    FaultyFileSystem.away = False
    with store.database.transaction() as session:
        lifecycle.retry(session, experiment)
    work(store)
    assert_undisturbed(store, store.run(experiment))


def test_a_user_need_not_wait_for_the_storage(store: Deployment) -> None:
    """A run that is paused while its worker waits for a store is paused, and goes on later."""
    experiment = store.submit(SHORT, nudge=False)

    def paused(_path: str) -> faulty.Fault | None:
        with store.database.transaction() as session:
            lifecycle.pause(session, experiment)
        return faulty.refused

    FaultyFileSystem.on_write = paused
    work(store.with_settings(lease_seconds=0.3), PATIENT)
    run = store.run(experiment)
    assert (run.status, run.done) == (Status.PAUSED, 0)
    assert "503 Slow Down" in (run.error or "")


def test_a_run_that_is_deleted_while_its_worker_waits_for_the_storage_leaves_nothing_there(
    store: Deployment,
) -> None:
    experiment = store.submit(SHORT, nudge=False)
    run_id, writes = store.run(experiment).id, count()

    def deleted(_path: str) -> faulty.Fault | None:
        if next(writes) == 0:
            return None
        with suppress(ResourceNotFoundError), store.database.transaction() as session:
            experiments.delete(session, experiment)
        return faulty.broken_off

    FaultyFileSystem.on_write = deleted
    work(store.with_settings(lease_seconds=0.3), PATIENT)
    assert store.storage.keys(run_id) == []


def test_old_checkpoints_that_could_not_be_removed_are_removed_later(store: Deployment) -> None:
    held = _held(store)
    checkpoints = Checkpoints(store.storage, held)
    for number in range(1, 6):
        key = checkpoints.save(number, b"state")
        FaultyFileSystem.away = number in (3, 4)
        checkpoints.keep(key)
        checkpoints.drop(f"{held.run_id}/99-1.safetensors")
        FaultyFileSystem.away = False
    assert store.storage.keys(held.run_id) == [f"{held.run_id}/{number}-1.safetensors" for number in (4, 5)]


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_kept_checkpoints_are_not_damaged(store: Deployment, cut: int) -> None:
    held, played = _held(store), Simulation(specification(SHORT), seed=0)
    checkpoints, keys, states = Checkpoints(store.storage, held), list[str](), list[bytes]()
    for number in (1, 2):
        played.advance()
        states.append(played.checkpoint())
        keys.append(checkpoints.save(number, states[-1]))
        checkpoints.keep(keys[-1])
    store.storage.put(keys[1], states[1][:cut])
    later = Checkpoints(store.storage, held.at(2, keys[1]))
    later.find()
    restored = Simulation(specification(SHORT), seed=0)
    later.restore(restored)
    assert restored.round == 1
    for _ in (2, 3):
        restored.advance()
    newest = later.save(3, restored.checkpoint())
    later.keep(newest)
    assert store.storage.keys(held.run_id) == [keys[0], newest]
    played.advance()
    assert restored.checkpoint() == played.checkpoint()


def _held(deployment: Deployment) -> Claim:
    """A run in somebody's hands."""
    deployment.submit(SHORT, nudge=False)
    with deployment.database.transaction() as session:
        held = runs.claim(session, claimant("worker-1"), 60.0)
    assert held is not None
    return held
