"""`fedq reproduce`: what it prints, and the exit code that a pipeline goes by."""

from threading import Thread

from sqlalchemy import update

from fedcore.platform.store import runs
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import RoundRecord
from fedcore.simulation.report import RoundReport
from fedq.client import Client
from tests.api.histories import TWO_ARMS, write
from tests.fedq.cli.conftest import Fedq
from tests.platform.store.acts import claim, fail, report
from tests.support.polling import eventually
from tests.support.service import Service


def _history(held: Claim) -> list[RoundReport]:
    return [report(round, train_loss=1 / (round + held.seed + held.arm)) for round in (1, 2, 3)]


def _play(service: Service) -> None:
    """Play the six runs of a repetition as soon as they are there."""

    def waiting() -> int:
        with service.database.reading() as session:
            return len(runs.ids(session)) - 6

    eventually(lambda: waiting() == 6, timeout_s=60)
    write(service.database, _history, 6)


def test_a_repetition_is_carried_out_and_compared(service: Service, client: Client, fedq: Fedq) -> None:
    original = client.submit(TWO_ARMS)
    write(service.database, _history, 6)
    player = Thread(target=_play, args=[service])
    player.start()
    done = fedq("reproduce", original.id)
    player.join()
    assert done.code == 0, done.err
    repetition = next(item.id for item in client.experiments() if item.id != original.id)
    assert f"{repetition} reproduces {original.id}" in done.err
    assert "identical (6 runs, 18 rounds and 0 final models compared)" in " ".join(done.out.split())
    assert fedq("reproduce", repetition, "--check").code == 0

    changed = client.runs(repetition)[4].id
    with service.database.transaction() as session:
        session.execute(
            update(RoundRecord)
            .where(RoundRecord.run_id == changed, RoundRecord.round > 1)
            .values(train_loss=0.5)
        )
    told = fedq("reproduce", repetition, "--check")
    assert told.code == 1
    assert "different" in told.out
    assert "lr=0.05 1 2 train_loss 0.25 0.5 5.0e-01" in " ".join(told.out.split())
    assert fedq("reproduce", original.id, "--check").code == 4


def test_a_repetition_that_fails_says_so_and_why(service: Service, client: Client, fedq: Fedq) -> None:
    original = client.submit(TWO_ARMS)
    write(service.database, _history, 6)
    repetition = client.reproduce(original.id).id
    fail(service.database, claim(service.database), "DataUnavailableError: no file of the data set")
    write(service.database, _history, 5)
    told = fedq("reproduce", repetition, "--check")
    assert told.code == 1
    assert f"{repetition} reproduces {original.id}: failed (" in " ".join(told.out.split())
    assert "error: DataUnavailableError: no file of the data set" in told.out


def test_a_repetition_under_way_is_neither(service: Service, client: Client, fedq: Fedq) -> None:
    original = client.submit(TWO_ARMS)
    write(service.database, _history, 6)
    told = fedq("reproduce", client.reproduce(original.id).id, "--check")
    assert (told.code, "pending" in told.out) == (4, True)
