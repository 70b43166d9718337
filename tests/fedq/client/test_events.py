"""Following an experiment, over connections that hold and over those that do not."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from fedcore.platform.status import ENDED, Status
from fedq.client import Client, NotFoundError
from fedq.client.events import Event
from fedq.schemas import RoundEvent, StatusEvent
from tests.api.histories import TINY, TWO_ARMS, carry_out
from tests.support.proxy import Fault, proxied
from tests.support.service import Service


def test_every_round_is_told_once_and_in_order_and_the_end_last(service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    with _worked_on(service, runs=6):
        events = list(client.stream(id))
    assert_all_told(client, id, events)


@pytest.mark.parametrize("faults", [[Fault.CUT], [Fault.REFUSED, Fault.CUT, Fault.CUT]])
def test_a_stream_that_breaks_is_picked_up_where_it_broke(
    service: Service, client: Client, faults: list[Fault]
) -> None:
    id = client.submit({**TWO_ARMS, "rounds": 10}).id
    carry_out(service.database, service.storage, 6)
    with proxied(service.url, *faults) as proxy, Client(proxy.url, service.key) as behind:
        events = list(behind.stream(id))
        assert proxy.connections == len(faults) + 1
    assert_all_told(client, id, events)


def test_events_begin_where_they_are_asked_for_however_they_come(service: Service, client: Client) -> None:
    id = client.submit({**TINY, "seeds": [0, 1]}).id
    carry_out(service.database, service.storage, 1)
    since = client.results(id).position
    carry_out(service.database, service.storage, 1)
    runs = [run.id for run in client.runs(id)]
    places = {since: [(runs[1], 1), (runs[1], 2), (runs[1], 3)], "now": [(runs[0], 3), (runs[1], 3)]}
    for place, rounds in places.items():
        assert _rounds(client.stream(id, since=place)) == rounds
        # Streams that bring nothing: it polls.
        with proxied(service.url, *[Fault.CUT] * 3) as proxy, Client(proxy.url, service.key) as behind:
            proxy.cut_after = 0
            assert _rounds(behind.stream(id, since=place)) == rounds


def _rounds(events: Iterable[Event]) -> list[tuple[str, int]]:
    """Run and round of those that are of rounds; the last tells of the end."""
    *told, last = events
    assert isinstance(last, StatusEvent)
    assert (last.run_id, last.status) == (None, Status.SUCCEEDED)
    return [(event.run_id, event.round) for event in told if isinstance(event, RoundEvent)]


@pytest.mark.slow
def test_an_experiment_is_polled_where_streams_bring_nothing(service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    with proxied(service.url, *[Fault.CUT] * 3) as proxy, Client(proxy.url, service.key) as behind:
        proxy.cut_after = 0
        events = list(behind.stream(id))
    assert_all_told(client, id, events)


def test_a_deleted_experiment_is_not_waited_for(client: Client) -> None:
    id = client.submit(TINY).id
    events = client.stream(id)
    assert next(events) == StatusEvent(
        experiment_id=id, run_id=client.runs(id)[0].id, status=Status.QUEUED, rounds_done=0
    )
    client.delete(id)
    with pytest.raises(NotFoundError):
        list(events)


def test_waiting_returns_the_experiment_as_it_ended(service: Service, client: Client) -> None:
    id = client.submit(TINY).id
    with _worked_on(service, runs=1):
        assert client.wait(id).status is Status.SUCCEEDED
    assert client.wait(id).status is Status.SUCCEEDED


def test_waiting_ends_in_time(client: Client) -> None:
    id = client.submit(TINY).id
    with pytest.raises(TimeoutError, match=r"did not finish within 0\.3 seconds"):
        client.wait(id, timeout_s=0.3)


def assert_all_told(client: Client, id: str, events: list[Event]) -> None:
    """`events` hold every row of the experiment, those of a run in order, and its end."""
    for run in client.runs(id):
        told = [event for event in events if isinstance(event, RoundEvent) and event.run_id == run.id]
        assert [event.model_dump(exclude={"run_id"}) for event in told] == [
            row.model_dump() for row in client.rounds(run.id)
        ]
        assert len(told) == run.rounds_done > 0
    assert isinstance(events[-1], StatusEvent)
    assert events[-1].run_id is None
    assert events[-1].status in ENDED


@contextmanager
def _worked_on(service: Service, runs: int) -> Iterator[None]:
    """A worker beside the test plays `runs` runs."""
    worker = threading.Thread(target=carry_out, args=(service.database, service.storage, runs))
    worker.start()
    yield
    worker.join()
