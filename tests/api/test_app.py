"""The process as a whole: light, and documented."""

import re
import subprocess
import sys

import httpx
import pytest

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
