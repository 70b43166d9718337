"""Asking a service: submitted, read, steered, fetched."""

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest
from safetensors.numpy import load

from fedcore import ExperimentSpec, presets
from fedcore.errors import SettingsError
from fedcore.platform.status import LogLevel, Status
from fedcore.settings import settings
from fedq.client import (
    AsyncClient,
    Client,
    ConflictError,
    Experiment,
    InvalidRequestError,
    NotFoundError,
    Results,
)
from fedq.client.calls.service import AllCalls, WebhookCalls
from fedq.client.client import Webhooks
from fedq.schemas import RoundEvent
from tests.builders.claims import claim
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, TWO_ARMS
from tests.platform.store.test_telemetry import line, note, sample
from tests.platform.uploads.files import arrays
from tests.support.service import Service

FOREIGN = (
    "celery",
    "fastapi",
    "kombu",
    "matplotlib",
    "numpy",
    "pandas",
    "polars",
    "sqlalchemy",
    "starlette",
    "torch",
    "uvicorn",
    "workers",
)


def test_a_document_a_spec_a_file_and_a_preset_can_be_submitted(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps({**TINY, "name": "from a file"}))
    assert client.submit(TINY).name == "tiny"
    assert client.submit(ExperimentSpec.model_validate(TINY)).name == "tiny"
    assert client.submit(file).name == client.submit(str(file)).name == "from a file"
    demo = client.submit("demo", {"rounds": 2, "seeds": [0]})
    assert (demo.progress.rounds_total, demo.provenance["preset"]) == (8, "demo")


def test_overrides_are_merged_into_a_document(client: Client) -> None:
    experiment = client.submit(TINY, {"local": {"lr": 0.5}, "rounds": 7})
    assert experiment.specification["local"]["lr"] == 0.5
    assert experiment.specification["local"]["steps"] == TINY["local"]["steps"]
    assert experiment.progress.rounds_total == 7


def test_a_dry_run_estimates_and_stores_nothing(client: Client) -> None:
    plan = client.dry_run(TWO_ARMS)
    assert ([arm.name for arm in plan.arms], plan.runs, plan.rounds) == (["lr=0.1", "lr=0.05"], 6, 18)
    assert list(client.experiments()) == []


def test_the_same_idempotency_key_submits_once(client: Client) -> None:
    first, second = (client.submit(TINY, idempotency_key="once") for _ in range(2))
    assert first.id == second.id
    assert client.submit(TINY).id != first.id


def test_experiments_are_listed_by_what_they_are(client: Client) -> None:
    tiny, two_arms = client.submit(TINY), client.submit(TWO_ARMS)
    client.cancel(tiny.id)
    assert [found.id for found in client.experiments()] == [two_arms.id, tiny.id]
    assert [found.id for found in client.experiments(status=Status.CANCELLED)] == [tiny.id]
    assert [found.id for found in client.experiments(name="two arms", tag="small")] == [two_arms.id]
    assert [found.id for found in client.experiments(search="ARMS")] == [two_arms.id]
    assert (
        list(client.experiments(created_after=two_arms.created_at, created_before=two_arms.created_at)) == []
    )


def test_runs_and_their_rows_are_read_to_the_last(service: Service, client: Client) -> None:
    experiment = client.submit(TWO_ARMS)
    carry_out(service.database, service.storage, 6)
    runs = client.runs(experiment.id)
    assert [(run.arm, run.seed, run.status) for run in runs] == [
        (arm, seed, "succeeded") for arm in (0, 1) for seed in (0, 1, 2)
    ]
    assert client.run(runs[0].id) == runs[0]
    assert [row.round for row in client.rounds(runs[0].id)] == [1, 2, 3]
    assert [row.round for row in client.rounds(runs[0].id, after=2)] == [3]


def test_the_log_and_the_resource_use_of_a_run_are_read(service: Service, client: Client) -> None:
    client.submit(TINY)
    held = claim(service.database)
    lines = [line(1), line(2, LogLevel.ERROR), line(3)]
    note(service.database, held, lines, [sample(number) for number in (1, 2)])
    assert [one.event for one in client.logs(held.run_id)] == ["event 1", "event 2", "event 3"]
    assert [one.number for one in client.logs(held.run_id, 1)] == [2, 3]
    (error,) = client.logs(held.run_id, level="error")
    assert str(error) == "2026-11-23T12:00:02.000Z worker-1 error event 2 number=2"
    assert [one.cpu_cores for one in client.resources(held.run_id)] == [1.0, 1.0]
    assert [one.number for one in client.resources(held.run_id, 1)] == [2]

    async def read() -> tuple[list[int], list[int]]:
        async with AsyncClient(service.url, service.key) as asking:
            return (
                [one.number async for one in asking.logs(held.run_id)],
                [one.number async for one in asking.resources(held.run_id)],
            )

    assert asyncio.run(read()) == ([1, 2, 3], [1, 2])


def test_an_experiment_is_steered(client: Client) -> None:
    id = client.submit(TINY).id
    assert client.pause(id).status is Status.PAUSED
    assert client.resume(id).status is Status.QUEUED
    assert client.cancel(id).status is Status.CANCELLED
    assert client.retry(id).status is Status.QUEUED
    assert client.edit(id, name="renamed", tags=["new"], priority=9).tags == ["new"]
    assert client.experiment(id).name == "renamed"
    client.delete(id)
    with pytest.raises(NotFoundError, match="there is no experiment"):
        client.experiment(id)


def test_senseless_actions_are_a_conflict(client: Client) -> None:
    id = client.submit(TINY).id
    client.cancel(id)
    with pytest.raises(ConflictError) as raised:
        client.pause(id)
    assert (raised.value.problem.status, raised.value.problem.type) == (409, "urn:fedq:problem:conflict")


def test_a_refused_specification_says_where(client: Client) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        client.submit({**TINY, "local": {"lr": -1, "steps": 2}, "raunds": 3})
    assert {flaw.pointer for flaw in raised.value.flaws} == {"/local/lr", "/raunds"}


def test_files_arrive_whole_in_memory_and_on_disk(service: Service, client: Client, tmp_path: Path) -> None:
    experiment = client.submit(TINY)
    carry_out(service.database, service.storage, 1)
    (run,) = client.runs(experiment.id)
    assert client.save_figure(experiment.id, tmp_path / "curve.svg").read_bytes() == client.figure(
        experiment.id
    )
    paper = client.figure(experiment.id, "pdf", width="single", arms=[0], markers=True, title="")
    assert paper.form == "pdf"
    assert client.figure(experiment.id, "csv").startswith(b"arm,name,metric,round,")
    assert (
        client.save_figure(experiment.id, tmp_path / "curve.PNG", x="bytes")
        .read_bytes()
        .startswith(b"\x89PNG")
    )
    assert client.save_model(run.id, tmp_path / "model.safetensors").read_bytes() == client.model(run.id)
    assert [parameter.shape for parameter in load(client.model(run.id)).values()] == [(2,)]
    best = client.save_model(run.id, tmp_path / "best.safetensors", which="best")
    assert best.read_bytes() == client.model(run.id, which="best")
    assert client.save_checkpoint(run.id, tmp_path / "checkpoint.safetensors").stat().st_size > 0
    assert {file.name for file in tmp_path.iterdir()} == {
        "curve.svg",
        "curve.PNG",
        "model.safetensors",
        "best.safetensors",
        "checkpoint.safetensors",
    }


def test_curves_are_drawn_and_listed_over_simulated_time(service: Service, client: Client) -> None:
    timed = client.submit(
        {**TINY, "systems": {"devices": {"steps_per_second": {"kind": "constant", "value": 4}}}}
    )
    carry_out(service.database, service.storage, 1)
    assert "simulated seconds" in client.figure(timed.id, metric="distance", x="time").decode()
    results = client.results(timed.id)
    assert [line["simulated_seconds"] for line in results.curves if line["metric"] == "distance"] == [
        0.5,
        1.0,
        1.5,
    ]
    assert [line["mean"] for line in results.summary if line["metric"] == "simulated_seconds"] == [1.5]
    assert [line["simulated_seconds"] for line in client.metrics(timed.id)] == [0.5, 1.0, 1.5]
    timeless = client.submit(TINY)
    carry_out(service.database, service.storage, 1)
    with pytest.raises(NotFoundError, match="simulated clock"):
        client.figure(timeless.id, x="time")


def test_a_figure_is_svg_png_pdf_or_csv(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.pdf or \.csv"):
        client.save_figure("exp_any", tmp_path / "curve.jpg")


def test_the_service_tells_what_it_offers_and_does(client: Client) -> None:
    client.submit(TWO_ARMS)
    assert [preset.name for preset in client.presets()] == presets.names()
    assert client.preset("demo").specification["name"] == "demo"
    assert {"algorithm", "problem.dataset"} <= {block.path for block in client.catalogue().blocks}
    (queue,) = client.queues().items
    assert (queue.queued, queue.rounds_left) == (6, 18)
    assert client.workers() == []


def test_address_and_key_come_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQ_URL", "http://fedq.example/")
    settings.cache_clear()
    with Client() as client:
        assert client.url == "http://fedq.example"
    settings.cache_clear()


@pytest.mark.parametrize("address", ["localhost:8642", "fedq.example", "ftp://fedq.example"])
def test_an_address_without_http_is_refused_with_what_would_be_right(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    with pytest.raises(SettingsError, match=f"^url must begin with http:// .*, not {address}$"):
        Client(address)
    monkeypatch.setenv("FEDQ_URL", address)
    settings.cache_clear()
    with pytest.raises(SettingsError, match=r"^FEDQ_URL must begin with http:// or https://"):
        AsyncClient()
    settings.cache_clear()


def test_a_key_that_was_copied_badly_is_mended_or_refused_and_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Client(api_key="fedq_secret\n") as client:
        assert client._transport.wire.http.headers["Authorization"] == "Bearer fedq_secret"
    for key in ("fedq_sec\nret", "fedq_secr\u00e9t", "fedq_sec\x00ret"):
        with pytest.raises(SettingsError, match=r"^api_key has characters") as refused:
            Client(api_key=key)
        assert "sec" not in str(refused.value)
        monkeypatch.setenv("FEDQ_API_KEY", key.replace("\x00", "\x01"))
        settings.cache_clear()
        with pytest.raises(SettingsError, match=r"^FEDQ_API_KEY has characters"):
            AsyncClient()
    settings.cache_clear()


LISTS = ("experiments", "rounds", "logs", "resources", "stream", "datasets", "bundles", "keys", "audit")


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_told_to_be_iterators(name: str) -> None:
    asked = getattr(Client, name)
    for told in (inspect.signature(asked).return_annotation, asked.__annotations__["return"]):
        assert get_origin(told) is Iterator
    assert get_origin(inspect.signature(getattr(AsyncClient, name)).return_annotation) is AsyncGenerator


def test_wrong_arguments_are_told_by_the_name_of_the_method(client: Client) -> None:
    with pytest.raises(TypeError, match=r"^arms\(\): too many positional arguments; it takes filter, sort, "):
        client.arms("local.lr < 1")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^experiments\(\): got an unexpected keyword argument 'sort'"):
        client.experiments(sort="name")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^me\(\): .*; it takes no arguments$"):
        client.me("ann")  # type: ignore[call-arg]


@pytest.mark.parametrize("module", ["fedq.client", "fedq.cli"])
def test_importing_client_and_command_line_loads_nothing_of_the_service_and_no_arrays(module: str) -> None:
    assert _loaded_by(f"import {module}", {*FOREIGN, "fedcore.algorithms", "yaml"}) == "[]"


def test_help_loads_neither_schemas_nor_the_client() -> None:
    code = "import contextlib, fedq.cli\nwith contextlib.suppress(SystemExit):\n    fedq.cli.main(['--help'])"
    assert _loaded_by(code, {*FOREIGN, "fedcore.block", "fedq.client", "httpx", "pydantic", "yaml"}) == "[]"


def _loaded_by(code: str, modules: set[str]) -> str:
    """Those of `modules` that a new process has loaded after `code`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    script = f"import sys\n{code}\nprint(sorted({modules!r} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return answer.stdout.splitlines()[-1]


# The client for event loops: the same calls.


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


def test_many_experiments_are_waited_for_at_once(service: Service) -> None:
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
