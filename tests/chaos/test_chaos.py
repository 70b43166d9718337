"""In short what `make chaos` does at length: a run suffers one fault after another, and nobody can
tell from what comes of it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.chaos.changes import change_at_once, recount
from tests.chaos.faults import KILLS, OTHERS
from tests.chaos.messages import assert_unmoved
from tests.chaos.storage import assert_archived, storage_faults
from tests.chaos.world import quantiles, world
from tests.support.brokers import broker
from tests.support.s3 import S3
from tests.workers.conftest import production
from tests.workers.deployment import Deployment, assert_undisturbed

__all__ = ["production"]

SEED = 0
NEW = ("checkpoint", "transaction", "reconciler", "all workers", "emptied", "0.2 s", "hours late")
"""Those of the faults that no other test has."""


@pytest.fixture
def redis_of_its_own() -> Iterator[str]:
    """Nobody else uses it, so that it may be slow."""
    with broker("redis") as url:
        yield url


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_that_suffers_one_fault_after_another_is_the_run_of_the_library(
    production: Deployment, redis_of_its_own: str
) -> None:
    deployment = replace(production.with_settings(broker_url=redis_of_its_own), broker_url=redis_of_its_own)
    faults = [fault for fault in (*KILLS, *OTHERS) if any(word in fault.name for word in NEW)]
    assert len(faults) == len(NEW)
    with world(deployment, len(faults), SEED) as suffering:
        for fault in faults:
            suffering.suffer(fault)
        (run,) = deployment.ended(suffering.experiment)
        assert_unmoved(suffering)
    assert_undisturbed(deployment, run)
    assert run.fence > len(faults)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_whose_object_store_fails_in_every_way_is_the_run_of_the_library_and_is_archived(
    production: Deployment, s3: S3
) -> None:
    bucket = s3.bucket()
    environment = {**production.environment, **s3.environment}
    deployment = replace(production, environment=environment).with_settings(storage_url=f"s3://{bucket}")
    faults = storage_faults(s3)
    with world(deployment, len(faults), SEED) as suffering:
        for fault in faults:
            suffering.suffer(fault)
        (run,) = deployment.ended(suffering.experiment)
    assert_undisturbed(deployment, run)
    assert_archived(deployment, s3, bucket)


DAMAGES = (
    (
        "UPDATE block SET rounds = jsonb_set(rounds::jsonb, $${columns,bytes_up,0}$$, $$1$$)::text",
        "differs from the library in round 1",
    ),
    ("UPDATE run SET seconds = seconds + 1 WHERE done > 0", "s, and its rounds"),
    ("UPDATE api_key SET spent_seconds = spent_seconds + 1", "keys have spent"),
    ("UPDATE tally SET value = value + 1 WHERE name = 'rounds'", "rounds were counted"),
    ("UPDATE block SET last = last + 1", "has rounds"),
    ("UPDATE run SET status = 'cancelled'", "its runs make it cancelled"),
    ("UPDATE run SET status = 'queued'", "keys have runs that wait or run"),
    ("UPDATE run SET request = 'pause'", "has ended with a request"),
    ("UPDATE run SET rounds = rounds + 1", "have other rounds than its specification"),
    ("DELETE FROM run WHERE seed = 1", "has not each arm with each seed"),
)
"""Each is one that a recount must find, in the order in which they are done."""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_changes_of_the_same_experiments_at_once_leave_nothing_that_does_not_agree(
    production: Deployment,
) -> None:
    actors = change_at_once(production, requests=60, strikes=2, seed=SEED)
    assert actors.made == len(actors.keys) * (60 // len(actors.keys))
    assert actors.away < actors.made / 2
    storage = Path(production.environment["FEDQ_STORAGE_URL"])
    assert list(recount(production.database, storage)) == []
    next(storage.rglob("model-*.safetensors")).unlink()
    (storage / "run_gone").mkdir()
    (storage / "run_gone" / "1-1.safetensors").touch()
    found = "\n".join(recount(production.database, storage))
    assert "has lost" in found
    assert "files of runs that are gone: {'run_gone'}" in found
    for damage, told in DAMAGES:
        with production.database.transaction() as session:
            session.execute(text(damage))
        assert told in "\n".join(recount(production.database, storage)), damage


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantiles([3.0, 1.0, 2.0]) == (2.0, 3.0, 3.0)
    assert quantiles([float(value) for value in range(1, 101)]) == (50.0, 95.0, 100.0)
    assert quantiles([4.0]) == (4.0, 4.0, 4.0)
