import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedcore.engine.process_tuning import make_gpu_deterministic

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
