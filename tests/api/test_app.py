"""The process as a whole: light, and documented."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import iscoroutinefunction

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from api import experiments

WEIGH = """
import sys
import api.app
app = api.app.create_app()
arrays = {"torch", "torchvision", "sklearn", "scipy", "numpy", "matplotlib", "pandas", "polars", "pyarrow"}
heavy = (arrays | {"fedcore.exporting"}) & set(sys.modules)
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
def test_the_pages_of_documentation_load_only_what_the_service_itself_serves(http: httpx.Client, path: str) -> None:
    loaded = re.findall(r'(?:src|href)="([^"]+)"', http.get(path).text)
    assert len(loaded) >= 2
    assert all(place.startswith("/") and http.get(place).status_code == 200 for place in loaded)


def test_to_submit_and_read_experiments_is_handed_to_a_thread_once() -> None:
    def calls(dependant: Dependant) -> Iterator[Callable[..., object] | None]:
        for needed in dependant.dependencies:
            yield needed.call
            yield from calls(needed)

    routes = [route for route in experiments.router.routes if isinstance(route, APIRoute)]
    assert {route.name for route in routes} == {"submit", "read_experiments", "read_experiment"}
    needed = {call for route in routes for call in calls(route.dependant)}
    # FastAPI hands what is not async to a thread, which takes longer than any of these. The endpoint itself is not among them.
    assert [call for call in needed if not iscoroutinefunction(call) and not iscoroutinefunction(type(call).__call__)] == []
