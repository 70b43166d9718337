"""The process as a whole: light, and documented."""

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import httpx
import pytest

from fedcore.platform.store import experiments as stored
from fedcore.platform.store.database import POOLED

WEIGH = """
import sys
import api.app
app = api.app.create_app()
arrays = {"torch", "torchvision", "sklearn", "scipy", "numpy", "matplotlib", "pandas", "polars", "pyarrow"}
heavy = (arrays | {"alembic", "celery", "redis", "opentelemetry.exporter.otlp.proto.http"}) & set(sys.modules)
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
