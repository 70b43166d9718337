"""The process as a whole: light, quick to start, and documented."""

import subprocess
import sys

import httpx
import pytest

WEIGH = """
import sys, time
import api.app
app = api.app.create_app()
# Its own time, whatever else this machine does.
seconds = time.process_time()
heavy = {"torch", "torchvision", "sklearn", "scipy", "numpy", "matplotlib", "pandas", "polars", "pyarrow"} & set(sys.modules)
import psutil
print(seconds, psutil.Process().memory_info().rss / 2**20, *sorted(heavy))
"""


@pytest.mark.slow
def test_the_process_starts_within_its_limits_and_without_tensors_arrays_and_frames() -> None:
    answer = subprocess.run([sys.executable, "-c", WEIGH], capture_output=True, text=True, check=True)
    seconds, megabytes, *heavy = answer.stdout.split()
    assert heavy == []
    assert float(seconds) < 1.5
    assert float(megabytes) < 150


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_the_interface_describes_itself(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200
