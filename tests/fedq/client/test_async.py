"""The client for event loops: the same calls."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest

from fedcore.platform.status import Status
from fedq.client import AsyncClient, Client, Experiment, NotFoundError, Results
from fedq.client.calls.service import AllCalls, WebhookCalls
from fedq.client.client import Webhooks
from fedq.schemas import RoundEvent
from tests.api.histories import TINY, TWO_ARMS, carry_out
from tests.platform.uploads.files import arrays
from tests.support.service import Service


@pytest.mark.parametrize(("calls", "waiting"), [(AllCalls, Client), (WebhookCalls, Webhooks)])
def test_every_call_can_be_waited_for(calls: type, waiting: type) -> None:
    for name, call in inspect.getmembers(calls, inspect.isfunction):
        if not name.startswith("_"):
            same = getattr(waiting, name)
            assert same.__doc__ == call.__doc__
            there, here = inspect.signature(same), inspect.signature(call)
            assert there.parameters == here.parameters
            if get_origin(listed := here.return_annotation) is AsyncGenerator:
                assert there.return_annotation == Iterator[get_args(listed)[0]]  # type: ignore[misc]
            else:
                assert there.return_annotation == here.return_annotation


def test_an_experiment_from_submission_to_files(service: Service, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient(service.url, service.key) as client:
            experiment = await client.submit(TINY)
            assert isinstance(experiment, Experiment)
            assert [found.id async for found in client.experiments(name="tiny")] == [experiment.id]
            carry_out(service.database, service.storage, 1)
            told = [
                event.round async for event in client.stream(experiment.id) if isinstance(event, RoundEvent)
            ]
            assert (
                told
                == [row.round async for row in client.rounds((await client.runs(experiment.id))[0].id)]
                == [1, 2, 3]
            )
            assert (await client.wait(experiment.id, progress=True)).status is Status.SUCCEEDED
            assert isinstance(await client.results(experiment.id), Results)
            assert len(await client.metrics(experiment.id)) == 3
            written = await client.save_figure(experiment.id, tmp_path / "curve.svg")
            assert written.read_bytes() == await client.figure(experiment.id)
            uploaded = await client.upload(arrays(), "mine")
            assert [item.id async for item in client.datasets()] == [uploaded.id]
            await client.delete_dataset(uploaded.id)
            with pytest.raises(NotFoundError):
                await client.dataset(uploaded.id)
            assert [webhook async for webhook in client.webhooks.list()] == []

    asyncio.run(main())


def test_many_are_waited_for_at_once(service: Service) -> None:
    async def main() -> None:
        async with AsyncClient(service.url, service.key) as client:
            made = await asyncio.gather(*(client.submit(TINY) for _ in range(3)))
            await asyncio.gather(*(client.cancel(experiment.id) for experiment in made))
            ended = await asyncio.gather(*(client.wait(experiment.id) for experiment in made))
            assert [experiment.status for experiment in ended] == [Status.CANCELLED] * 3

    asyncio.run(main())


def test_the_waiting_client_works_where_an_event_loop_runs_as_in_a_notebook(
    service: Service, client: Client
) -> None:
    async def cell() -> None:
        experiment = client.submit(TWO_ARMS)
        carry_out(service.database, service.storage, 6)
        first = next(event for event in client.stream(experiment.id) if isinstance(event, RoundEvent))
        assert first.round == 1
        assert client.wait(experiment.id).status is Status.SUCCEEDED
        assert len(client.metrics(experiment.id)) == 18

    asyncio.run(cell())


def test_a_stream_that_is_left_early_lets_go_of_its_connection(service: Service, client: Client) -> None:
    id = client.submit(TINY).id
    for _ in range(3):
        events = client.stream(id)
        next(events)
        events.close()  # type: ignore[attr-defined]
    pool = client._transport.wire.http._transport._pool  # type: ignore[union-attr]
    assert all(connection.is_idle() or connection.is_closed() for connection in pool.connections)
