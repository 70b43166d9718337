"""Drawings delay no other request and leave no memory behind."""

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import anyio
import httpx
import matplotlib.figure
import pytest

from api.results.pictures import DrawingGate
from fedcore.platform.store import Database
from fedcore.platform.store.database import POOLED
from fedcore.settings import Settings
from tests.api.histories import TWO_ARMS, submit, write
from tests.platform.store.acts import report
from tests.support.asgi import application, calling
from tests.support.slow_gates import SlowGate

DRAWN = (
    "/v1/experiments/{id}/figure.png",
    "/v1/compare/figure.svg?arm={id}",
    "/v1/experiments/{id}/report.html",
)


@pytest.fixture
def id(http: httpx.Client, rows: Database) -> str:
    made = submit(http, TWO_ARMS)
    write(rows, lambda held: [report(round, train_loss=10.0 - round - held.arm) for round in (1, 2, 3)], 6)
    return str(made["id"])


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class SlowDrawingGate(SlowGate, DrawingGate):
    """Drawings that take until they may go on."""


@pytest.mark.parametrize("path", DRAWN)
def test_drawings_that_wait_delay_no_other_request(settings: Settings, admin_key: str, path: str) -> None:
    gate = SlowDrawingGate()
    with (
        calling(application(settings, drawing_gate=gate), admin_key) as http,
        ThreadPoolExecutor(POOLED + 3) as clients,
    ):
        id = submit(http, TWO_ARMS)["id"]
        try:
            drawings = [clients.submit(http.get, path.format(id=id)) for _ in range(POOLED + 2)]
            assert gate.began.acquire(timeout=60)
            assert clients.submit(http.get, "/v1/me").result(timeout=60).status_code == 200
            assert not gate.began.acquire(blocking=False)
        finally:
            gate.go_on.set()
        assert {drawing.result().status_code for drawing in drawings} == {409}


@pytest.mark.parametrize("path", DRAWN)
@pytest.mark.usefixtures("collector_off")
def test_a_figure_is_freed_before_it_is_answered_without_the_cyclic_collector(
    http: httpx.Client, id: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ref[Any]] = []
    figure_class = matplotlib.figure.Figure

    def make(**options: Any) -> matplotlib.figure.Figure:
        figure = figure_class(**options)
        made.append(ref(figure))
        return figure

    monkeypatch.setattr(matplotlib.figure, "Figure", make)
    assert http.get(path.format(id=id)).status_code == 200
    assert made
    assert [figure() for figure in made] == [None] * len(made)


@pytest.mark.slow
def test_owners_take_turns() -> None:
    order: list[str] = []
    first_may_end = threading.Event()

    def draw(name: str) -> None:
        if name == "ann 0":
            first_may_end.wait()
        order.append(name)

    async def run() -> None:
        gate = DrawingGate()
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(gate.run, "ann", lambda number=number: draw(f"ann {number}"))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(gate.run, "bob", lambda: draw("bob"))
            await anyio.wait_all_tasks_blocked()
            first_may_end.set()

    anyio.run(run)
    assert order == ["ann 0", "bob", "ann 1", "ann 2"]
