"""The process keeps freed memory for the next round, until it is idle; and no pages of libraries that
only the loader has read.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedcore.engine.process_tuning import make_gpu_deterministic

CODE = """
import psutil, resource, sys, torch
from concurrent.futures import ThreadPoolExecutor
from fedcore.engine.process_tuning import release_freed_memory, retain_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
torch.set_num_threads(1)
retain_freed_memory()
with ThreadPoolExecutor(1) as thread:
    here = (lambda act: act()) if sys.argv[1] == "main" else (lambda act: thread.submit(act).result())
    print([here(faults) for _ in range(30)][-1])
held = psutil.Process().memory_info().rss
release_freed_memory()
print(held - psutil.Process().memory_info().rss)
"""
LIBRARIES = """
import psutil, torch
from fedcore.engine.process_tuning import release_library_pages
held = psutil.Process().memory_info().rss
release_library_pages()
print(held - psutil.Process().memory_info().rss)
print(torch.linalg.solve(torch.eye(3) * 2, torch.ones(3)).tolist())
"""
PAGES = 20_000_000 * 4 // 4096


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="an option of the GNU C library")
@pytest.mark.parametrize(
    ("environment", "thread", "cleared"),
    [
        pytest.param({}, "main", False, marks=pytest.mark.nightly),
        ({}, "another", False),
        pytest.param({"MALLOC_MMAP_THRESHOLD_": "1000000"}, "main", True, marks=pytest.mark.nightly),
    ],
)
def test_a_large_block_is_cleared_once_and_kept_until_idle_unless_the_user_has_set_the_allocator(
    environment: dict[str, str], thread: str, cleared: bool
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE, thread], env=environment, capture_output=True, text=True, check=True
    )
    faults, released = map(int, ended.stdout.split())
    assert (faults > PAGES // 2) == cleared
    assert (released > PAGES * 4096 // 2) != cleared


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="by the tables of Linux")
def test_libraries_compute_after_the_pages_that_the_loader_has_read_are_released() -> None:
    ended = subprocess.run([sys.executable, "-c", LIBRARIES], capture_output=True, text=True, check=True)
    released, solution = ended.stdout.splitlines()
    assert int(released) > 50e6
    assert solution == "[0.5, 0.5, 0.5]"


CUDNN: Any = torch.backends.cudnn


MATMUL: Any = torch.backends.cuda.matmul
SETTINGS: list[tuple[Any, str, Any]] = (
    [
        (CUDNN.conv, "fp32_precision", "ieee"),
        (CUDNN.rnn, "fp32_precision", "ieee"),
        (MATMUL, "fp32_precision", "ieee"),
    ]
    if hasattr(MATMUL, "fp32_precision")
    else [(CUDNN, "allow_tf32", False), (MATMUL, "allow_tf32", False)]  # before PyTorch 2.9
)
"""Settings with which products are computed in full precision."""


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Afterwards the settings are as they were."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    changed = [(place, name) for place, name, _ in SETTINGS] + [
        (CUDNN, "deterministic"),
        (CUDNN, "benchmark"),
    ]
    kept = [getattr(place, name) for place, name in changed]
    yield
    for (place, name), value in zip(changed, kept, strict=True):
        setattr(place, name, value)
    CUDNN.allow_tf32 = True


@pytest.mark.usefixtures("untouched")
def test_a_gpu_is_to_compute_in_full_precision_and_the_same_bits() -> None:
    make_gpu_deterministic(torch.device("cuda"))
    assert all(getattr(place, name) == exact for place, name, exact in SETTINGS)
    assert CUDNN.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("untouched")
def test_a_cpu_needs_nothing() -> None:
    before = CUDNN.deterministic
    make_gpu_deterministic(torch.device("cpu"))
    assert CUDNN.deterministic == before
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.usefixtures("untouched")
def test_users_code_may_read_and_change_the_settings() -> None:
    make_gpu_deterministic(torch.device("cuda"))
    assert CUDNN.allow_tf32 is False
    with CUDNN.flags(enabled=False):
        assert CUDNN.enabled is False
