"""A worker that hears of nothing, though runs wait, notices."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fedcore.store import Database, Status, turn
from tests.store.acts import claim, read, submit
from tests.support.forks import Forked, forked
from tests.support.polling import eventually
from tests.workers.site import END_S, Site
from workers.lookout import PATIENCE, Lookout

LONG_AGO_S = -60.0
"""Before any run that a test makes has come to wait."""


class Ear:
    """What a lookout is told, and what it does."""

    def __init__(self, *, waits: bool = True, takes: bool = True) -> None:
        self.waits, self.takes = waits, takes
        self.nudges = self.ends = 0
        self.lookout = Lookout(lambda _: self.waits, self._nudge, self._end)

    def look(self, times: int) -> None:
        for _ in range(times):
            self.lookout.look()

    def _nudge(self) -> bool:
        self.nudges += 1
        return self.takes

    def _end(self) -> None:
        self.ends += 1


def test_a_worker_that_does_not_hear_its_own_nudges_ends() -> None:
    ear = Ear()
    ear.look(PATIENCE)
    assert (ear.nudges, ear.ends) == (PATIENCE, 0)
    ear.look(1)
    assert (ear.nudges, ear.ends) == (PATIENCE, 1)


def _hear(ear: Ear) -> None:
    with ear.lookout.heard():
        pass


def _come_to_nothing(ear: Ear) -> None:
    ear.waits = False
    ear.look(1)
    ear.waits = True


@pytest.mark.parametrize("happens", [_hear, _come_to_nothing])
def test_its_patience_begins_anew_when_it_hears_one_and_when_nothing_waits(happens: Callable[[Ear], None]) -> None:
    ear = Ear()
    for _ in range(3):
        ear.look(PATIENCE)
        happens(ear)
    assert ear.ends == 0


def test_a_broker_that_takes_no_nudge_says_nothing_of_the_worker() -> None:
    ear = Ear(takes=False)
    ear.look(10 * PATIENCE)
    assert ear.ends == 0


def test_a_worker_at_work_looks_out_for_nothing() -> None:
    ear = Ear()
    with ear.lookout.heard():
        ear.look(10 * PATIENCE)
    assert (ear.nudges, ear.ends) == (0, 0)


def test_overlooked_is_a_run_that_waits_in_these_queues_fits_and_may_begin(database: Database) -> None:
    def overlooked(*queues: str, room: int = 1_000, for_s: float = LONG_AGO_S) -> bool:
        return read(database, turn.overlooked, queues, room, for_s)

    assert not overlooked("default")
    submit(database)
    assert overlooked("default")
    assert overlooked("gpu", "default")
    assert not overlooked("gpu")
    assert not overlooked("default", for_s=3_600.0)
    assert not overlooked("default", room=-1)
    claim(database)
    assert not overlooked("default")


@contextmanager
def deaf(site: Site) -> Iterator[Forked]:
    """A worker that listens where nobody calls, and looks often."""
    with forked("tests.workers.deaf", log=site.folder / "worker-deaf.log", environment=site.environment, folder=site.folder) as process:
        yield process


def test_a_worker_that_has_gone_deaf_ends_with_its_child_and_another_carries_the_run_out(embedded: Site) -> None:
    with deaf(embedded) as process:
        eventually(embedded.workers, timeout_s=END_S)
        experiment = embedded.submit()
        assert process.wait(END_S) == 1
        assert embedded.run(experiment).status is Status.QUEUED
    assert embedded.logged("no nudge reaches this worker")
    with embedded.running(reconciler=False):
        (run,) = embedded.ended(experiment)
        assert run.status is Status.SUCCEEDED
