"""The process keeps freed memory for the next round, until it is idle; and no pages of libraries that
only the loader has read.
"""

import subprocess
import sys

import pytest

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
        ({"MALLOC_MMAP_THRESHOLD_": "1000000"}, "main", True),
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
