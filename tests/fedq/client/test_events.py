"""Following an experiment, over connections that hold and over those that do not."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from itertools import islice

import pytest

from fedcore.platform.status import ENDED, Status
from fedq.client import Client, NotFoundError, ServiceUnavailableError, ServiceUnreachableError
from fedq.client.calls.service import AllCalls
from fedq.client.events import POLL_S, Event
from fedq.client.transport import PATIENCE_S, Transport, Wire, finish, finish_each
from fedq.schemas import RoundEvent, StatusEvent
from tests.builders import claims
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, TWO_ARMS
from tests.support.proxy import Fault, proxied
from tests.support.service import Service
from tests.support.timeless import AsyncTimeless, Timeless, timeless

STREAM = b"/events?"


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
        assert proxy.faults == []
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
        # Streams are blocked: it polls.
        with proxied(service.url) as proxy, Client(proxy.url, service.key) as behind:
            proxy.blocks = STREAM
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
    with proxied(service.url) as proxy, Client(proxy.url, service.key) as behind:
        proxy.blocks = STREAM
        events = list(behind.stream(id))
    assert_all_told(client, id, events)


def test_polling_goes_on_from_the_last_round_that_a_stream_has_told(service: Service, client: Client) -> None:
    """Since now, too, which is a later place by then."""
    id = client.submit({**TINY, "rounds": 6}).id
    held = claims.commit(service.database, claims.claim(service.database), 2)
    with (
        proxied(service.url) as proxy,
        finishing(timeless(Timeless, proxy.url, service.key, [])) as transport,
    ):
        events = finish_each(AllCalls(transport).stream(id, since="now"))
        assert [event.round for event in islice(events, 3) if isinstance(event, RoundEvent)] == [2]
        proxy.blocks = STREAM
        proxy.fail()
        claims.finish(service.database, held)
        assert [round for _, round in _rounds(events)] == [3, 4, 5, 6]


def test_polling_goes_on_where_a_stream_ended_for_runs_that_had_told_nothing(
    service: Service, client: Client
) -> None:
    id = client.submit({**TINY, "seeds": [0, 1]}).id
    first = claims.commit(service.database, claims.claim(service.database), 2)
    with (
        proxied(service.url) as proxy,
        finishing(timeless(Timeless, proxy.url, service.key, [])) as transport,
    ):
        events = finish_each(AllCalls(transport).stream(id, since="now"))
        assert [event.round for event in islice(events, 4) if isinstance(event, RoundEvent)] == [2]
        proxy.blocks = STREAM
        proxy.fail()
        claims.finish(service.database, first)
        claims.finish(service.database, claims.claim(service.database))
        assert [round for _, round in _rounds(events)] == [3, 1, 2, 3]


OUTAGE = [Fault.UNAVAILABLE] * 5 + [Fault.REFUSED] * 4
"""Longer than 30 seconds, by the pauses of a client."""


@pytest.mark.parametrize("wire", [Timeless, AsyncTimeless])
def test_an_outage_is_waited_out_without_loss_or_repetition(
    service: Service, client: Client, wire: Callable[..., Wire]
) -> None:
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 3)

    async def follow_through_outages() -> list[Event]:
        events, told = [], aclosing(AllCalls(transport).stream(id))
        async with told as stream:
            async for event in stream:
                events.append(event)
                if len(events) == 1:
                    proxy.fail(*OUTAGE)
                    carry_out(service.database, service.storage, 3)
        assert (await AllCalls(transport).wait(id)).status is Status.SUCCEEDED
        await transport.wire.close()
        return events

    # Just started, too, it waits.
    with proxied(service.url, *OUTAGE) as proxy:
        pauses: list[float] = []
        transport = timeless(wire, proxy.url, service.key, pauses)
        events = (
            finish(follow_through_outages()) if wire is Timeless else asyncio.run(follow_through_outages())
        )
        assert proxy.faults == []
    assert sum(pauses) > 60
    assert_all_told(client, id, events)


def test_an_outage_does_not_turn_a_stream_into_polling(service: Service, client: Client) -> None:
    id = client.submit(TINY).id
    pauses: list[float] = []
    with (
        proxied(service.url) as proxy,
        finishing(timeless(Timeless, proxy.url, service.key, pauses)) as transport,
    ):
        events = finish_each(AllCalls(transport).stream(id))
        next(events)
        proxy.fail(*[Fault.REFUSED] * 9)
        carry_out(service.database, service.storage, 1)
        assert len(_rounds(events)) == 3
    assert len(pauses) > 9
    assert POLL_S not in pauses


def test_a_service_that_stays_away_is_given_up_after_a_minute(service: Service, client: Client) -> None:
    id = client.submit(TINY).id
    for faults, error in (
        ([Fault.UNAVAILABLE] * 99, ServiceUnavailableError),
        ([Fault.REFUSED] * 99, ServiceUnreachableError),
    ):
        pauses: list[float] = []
        with (
            proxied(service.url) as proxy,
            finishing(timeless(Timeless, proxy.url, service.key, pauses)) as transport,
        ):
            events = finish_each(AllCalls(transport).stream(id))
            next(events)
            proxy.fail(*faults)
            with pytest.raises(error):
                list(events)
        assert sum(pauses) == pytest.approx(PATIENCE_S, abs=1.0)


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


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (None, TimeoutError, r"did not finish within 0\.3 seconds"),
        (Fault.UNAVAILABLE, ServiceUnavailableError, "^The database is unavailable"),
        (Fault.REFUSED, ServiceUnreachableError, "no answer"),
    ],
)
def test_waiting_ends_in_time(
    service: Service, client: Client, fault: Fault | None, error: type[Exception], words: str
) -> None:
    id = client.submit(TINY).id
    with proxied(service.url) as proxy, Client(proxy.url, service.key) as behind:
        assert behind.experiment(id).status is Status.QUEUED
        if fault is not None:
            proxy.fail(*[fault] * 99)
        began = time.monotonic()
        with pytest.raises(error, match=words):
            behind.wait(id, timeout_s=0.3)
        assert time.monotonic() - began < 5


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


@contextmanager
def finishing(transport: Transport) -> Iterator[Transport]:
    yield transport
    finish(transport.wire.close())
