"""The process as a whole: light, and documented."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import isasyncgenfunction, iscoroutinefunction
from threading import Lock
from typing import Any

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from api.experiments import routes as experiments_routes
from fedcore.platform.store import experiments as stored
from fedcore.platform.store.database import POOLED

WEIGH = """
import sys
import api.app
app = api.app.create_app()
arrays = {"torch", "torchvision", "sklearn", "scipy", "numpy", "matplotlib", "pandas", "polars", "pyarrow"}
heavy = (arrays | {"opentelemetry.exporter.otlp.proto.http"}) & set(sys.modules)
import psutil
print(psutil.Process().memory_info().rss / 2**20, *sorted(heavy))
"""


@pytest.mark.slow
def test_the_process_is_small_and_loads_no_tensors_arrays_and_frames() -> None:
    answer = subprocess.run([sys.executable, "-c", WEIGH], capture_output=True, text=True, check=True)
    megabytes, *heavy = answer.stdout.split()
    assert heavy == []
    assert float(megabytes) < 150


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_the_interface_describes_itself(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_the_pages_of_documentation_load_only_what_the_service_itself_serves(
    http: httpx.Client, path: str
) -> None:
    loaded = re.findall(r'(?:src|href)="([^"]+)"', http.get(path).text)
    assert len(loaded) >= 2
    assert all(place.startswith("/") and http.get(place).status_code == 200 for place in loaded)


def test_to_submit_and_read_experiments_is_handed_to_a_thread_once() -> None:
    def calls(dependant: Dependant) -> Iterator[Callable[..., object] | None]:
        for needed in dependant.dependencies:
            yield needed.call
            yield from calls(needed)

    routes = [route for route in experiments_routes.router.routes if isinstance(route, APIRoute)]
    assert {route.name for route in routes} == {"submit", "read_experiments", "read_experiment"}
    needed = {call for route in routes for call in calls(route.dependant)}
    # FastAPI hands what is not async to a thread, which takes longer than any of these. The
    # endpoint itself is not among them.
    asynchronous = (
        iscoroutinefunction,
        isasyncgenfunction,
        lambda call: iscoroutinefunction(type(call).__call__),
    )
    assert [call for call in needed if not any(kind(call) for kind in asynchronous)] == []


def test_no_more_threads_answer_than_have_connections(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, most, asked = 0, 0, stored.page

    def page(*given: Any, **named: Any) -> Any:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.02)
        with lock:
            at_work -= 1
        return asked(*given, **named)

    lock = Lock()
    monkeypatch.setattr(stored, "page", page)
    with ThreadPoolExecutor(3 * POOLED) as clients:
        answers = list(clients.map(lambda _: http.get("/v1/experiments"), range(5 * POOLED)))
    assert {answer.status_code for answer in answers} == {200}
    assert 1 < most <= POOLED
