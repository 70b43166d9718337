"""An object store that fails: while a run commits, while another worker takes the run up, and while
experiments are archived.
"""

import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from fedcore.platform.store import experiments
from fedcore.platform.store.tables import RunRecord
from tests.chaos.world import END_S, Fault, World
from tests.support import s3
from tests.support.forks import forked
from tests.support.polling import eventually
from tests.support.s3 import S3
from tests.workers.deployment import Deployment
from workers.retention import RESULTS

FOR_S = 3.0
SHARE = 0.5
"""Of requests that fail while the store is not to be relied on."""
PASSING = {
    s3.Fault.BUSY: "answers with 503",
    s3.Fault.RESET: "resets connections",
    s3.Fault.LOST: "loses its answers",
    s3.Fault.CUT: "cuts its answers short",
    s3.Fault.SLOW: "is slow",
}


def storage_faults(store: S3) -> Sequence[Fault]:
    """Faults of a run whose files are in `store`."""
    return (
        *(
            Fault(f"the object store {words} for {FOR_S:g} s", _failing(store, kind), takes=False)
            for kind, words in PASSING.items()
        ),
        Fault("killed while the object store fails every other request", partial(_killed, store)),
    )


def assert_archived(deployment: Deployment, store: S3, bucket: str) -> None:
    """Retention on a store that fails every other request: all that was in the bucket is in the archive,
    and the bucket is empty.
    """
    stored, copies = store.objects(bucket), store.bucket()
    with deployment.database.reading() as session:
        ids = [experiment.id for experiment in experiments.page(session).items]
    experiment = {run.id: id for id in ids for run in deployment.runs(id)}
    expected = {f"{experiment[key.partition('/')[0]]}/{key}": data for key, data in stored.items()}
    assert expected
    retention = deployment.with_settings(retention_days=1e-9, archive_url=f"s3://{copies}")
    log = deployment.folder / f"retention-{time.monotonic_ns()}.log"
    with forked("workers.reconciler", log=log, environment=retention.environment, folder=deployment.folder):
        store.fail(*PASSING, share=SHARE)
        eventually(lambda: not _left(deployment), timeout_s=END_S)
        store.fail()
        # Without their contents: an object may be removed between its listing and its reading.
        eventually(lambda: not store.keys(bucket), timeout_s=END_S)
    archived = store.objects(copies)
    for id in ids:
        assert archived.pop(f"{id}/{RESULTS}")
    assert archived == expected


def _left(deployment: Deployment) -> bool:
    with deployment.database.reading() as session:
        return bool(experiments.page(session).items)


def _failing(store: S3, kind: s3.Fault) -> Callable[[World, RunRecord], float]:
    def strike(_world: World, _run: RunRecord) -> float:
        store.fail(kind)
        time.sleep(FOR_S)
        store.fail()
        return time.monotonic()

    return strike


def _killed(store: S3, world: World, run: RunRecord) -> float:
    store.fail(*PASSING, share=SHARE)
    world.passing.callback(store.fail)
    world.deployment.send(run, signal.SIGKILL)
    return time.monotonic()
