"""In short what `make chaos` does at length: a run suffers one fault after another, and nobody can
tell from what comes of it.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.chaos.faults import KILLS, OTHERS
from tests.chaos.messages import assert_unmoved
from tests.chaos.storage import assert_archived, storage_faults
from tests.chaos.world import quantiles, world
from tests.support.brokers import broker
from tests.support.s3 import S3
from tests.workers.conftest import production
from tests.workers.site import Site, assert_undisturbed

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
    production: Site, redis_of_its_own: str
) -> None:
    site = replace(production.with_settings(broker_url=redis_of_its_own), broker_url=redis_of_its_own)
    faults = [fault for fault in (*KILLS, *OTHERS) if any(word in fault.name for word in NEW)]
    assert len(faults) == len(NEW)
    with world(site, len(faults), SEED) as suffering:
        for fault in faults:
            suffering.suffer(fault)
        (run,) = site.ended(suffering.experiment)
        assert_unmoved(suffering)
    assert_undisturbed(site, run)
    assert run.fence > len(faults)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_whose_object_store_fails_in_every_way_is_the_run_of_the_library_and_is_archived(
    production: Site, s3: S3
) -> None:
    bucket = s3.bucket()
    environment = {**production.environment, **s3.environment}
    site = replace(production, environment=environment).with_settings(storage_url=f"s3://{bucket}")
    faults = storage_faults(s3)
    with world(site, len(faults), SEED) as suffering:
        for fault in faults:
            suffering.suffer(fault)
        (run,) = site.ended(suffering.experiment)
    assert_undisturbed(site, run)
    assert_archived(site, s3, bucket)


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantiles([3.0, 1.0, 2.0]) == (2.0, 3.0, 3.0)
    assert quantiles([float(value) for value in range(1, 101)]) == (50.0, 95.0, 100.0)
    assert quantiles([4.0]) == (4.0, 4.0, 4.0)
