"""Memory that runs out is recognised, however it shows."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore.simulation.out_of_memory import is_out_of_memory, oom_kill_count, user_message

SHORTAGES = (
    MemoryError(),
    MemoryError("Unable to allocate 8.00 GiB for an array with shape (1024,)"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried to"
        " allocate 8 bytes"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: out of memory"),
    OSError(12, "Cannot allocate memory"),
)
OTHERS = (
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("out of memory"),
    OSError(28, "No space left on device"),
)


@pytest.mark.parametrize("error", SHORTAGES, ids=str)
def test_a_shortage_is_recognised_and_told(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert user_message(error).startswith("memory ran out (")


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_are_not_taken_for_a_lack_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    "ask", [lambda: torch.empty(1 << 40), lambda: np.ones(1 << 40), lambda: bytearray(1 << 43)]
)
def test_errors_that_libraries_really_raise_are_recognised(ask: object) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 38, limits[1]))
    try:
        with pytest.raises((MemoryError, RuntimeError)) as raised:
            ask()  # type: ignore[operator]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert is_out_of_memory(raised.value)


def test_processes_that_the_system_has_ended_are_counted_where_it_says_so(tmp_path: Path) -> None:
    counter = tmp_path / "vmstat"
    assert oom_kill_count(counter) == 0
    counter.write_text("nr_free_pages 100\n")
    assert oom_kill_count(counter) == 0
    counter.write_text("nr_free_pages 100\noom_kill 5\n")
    assert oom_kill_count(counter) == 5
