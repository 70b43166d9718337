"""The process as a whole: light, and documented."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.store.database import POOLED

WEIGH = """
import sys
import api.app
app = api.app.create_app()
arrays = {"torch", "torchvision", "sklearn", "scipy", "numpy", "matplotlib", "pandas", "polars", "pyarrow"}
late = {"alembic", "celery", "httpx", "markdown_it", "pyparsing", "redis"}
late.add("opentelemetry.exporter.otlp.proto.http")
heavy = (arrays | late) & set(sys.modules)
import psutil
print(psutil.Process().memory_info().rss / 2**20, *sorted(heavy))
"""


@pytest.mark.slow
def test_the_process_is_small_and_loads_no_tensors_arrays_frames_and_broker() -> None:
    answer = subprocess.run([sys.executable, "-c", WEIGH], capture_output=True, text=True, check=True)
    megabytes, *heavy = answer.stdout.split()
    assert heavy == []
    assert float(megabytes) < 125


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


def test_no_more_threads_answer_than_have_connections(app: FastAPI, http: httpx.Client) -> None:
    at_work, go_on = Semaphore(0), Event()

    @app.get("/busy", include_in_schema=False)
    def busy() -> None:
        at_work.release()
        go_on.wait()

    with ThreadPoolExecutor(3 * POOLED) as clients:
        try:
            asked = [clients.submit(http.get, "/busy") for _ in range(3 * POOLED)]
            assert all(at_work.acquire(timeout=60) for _ in range(POOLED))
            assert not at_work.acquire(timeout=0.05)
        finally:
            go_on.set()
        assert {answer.result().status_code for answer in asked} == {200}
