"""When a transaction commits, the files that its rows point to outlive a power loss."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, event, update

from fedcore.platform.store import Status, recovery
from fedcore.platform.store.tables import RunRecord
from tests.builders.specifications import merged
from tests.support.disk import Disk
from tests.workers.deployment import EXPERIMENT, Deployment, assert_undisturbed

POINTERS = (
    "SELECT checkpoint FROM run WHERE checkpoint IS NOT NULL UNION SELECT model FROM run WHERE model IS NOT"
    " NULL"
)


@contextmanager
def before_each_commit(look: Callable[[Connection], None]) -> Iterator[None]:
    """`look` sees what every transaction is about to commit."""
    event.listen(Engine, "commit", look)
    yield
    event.remove(Engine, "commit", look)


def test_no_row_points_to_a_file_that_a_power_loss_would_take(deployment: Deployment) -> None:
    experiment = deployment.submit(merged(EXPERIMENT, {"rounds": 5}), nudge=False)
    disk, seen, lost = Disk(deployment.folder), set[str](), set[str]()

    def look(connection: Connection) -> None:
        for key in connection.exec_driver_sql(POINTERS).scalars():
            file = deployment.folder / "storage" / key
            seen.add(key)
            if disk.survives(file) != file.read_bytes():
                lost.add(key)

    with (
        deployment.with_settings(slice_seconds=0.001).runner() as runner,
        disk.recording(),
        before_each_commit(look),
    ):
        runner.work()
    run = deployment.run(experiment)
    assert run.status is Status.SUCCEEDED
    assert {run.checkpoint, run.model} <= seen
    assert not lost


def test_state_left_by_a_power_loss_is_enough_to_go_on_to_the_same_bits(embedded: Deployment) -> None:
    deployment = embedded.with_settings(slice_seconds=0.001)
    (embedded.folder / "storage").mkdir()
    for moment in range(5):
        experiment = deployment.submit(merged(EXPERIMENT, {"rounds": 4}), nudge=False)
        disk = Disk(deployment.folder / "storage")
        with deployment.runner() as runner, disk.failing(moment):
            runner.work()
        with deployment.database.transaction() as session:
            session.execute(
                update(RunRecord)
                .where(RunRecord.status == Status.RUNNING)
                .values(lease_until=RunRecord.created_at)
            )
            assert len(recovery.requeue_expired(session, recovery.LeaseWatch(1.0), max_attempts=3)) == 1
        with deployment.runner() as runner:
            runner.work()
        assert_undisturbed(deployment, deployment.run(experiment))
