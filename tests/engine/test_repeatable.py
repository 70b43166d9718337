import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedcore.engine.process_tuning import make_gpu_deterministic

CUDNN: Any = torch.backends.cudnn


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Afterwards the settings are as they were."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    cudnn, matmul = CUDNN, torch.backends.cuda.matmul
    kept = (
        cudnn.conv.fp32_precision,
        cudnn.rnn.fp32_precision,
        matmul.fp32_precision,
        cudnn.deterministic,
        cudnn.benchmark,
    )
    yield
    (
        cudnn.conv.fp32_precision,
        cudnn.rnn.fp32_precision,
        matmul.fp32_precision,
        cudnn.deterministic,
        cudnn.benchmark,
    ) = kept


@pytest.mark.usefixtures("untouched")
def test_a_gpu_is_to_compute_in_full_precision_and_the_same_bits() -> None:
    make_gpu_deterministic(torch.device("cuda"))
    assert CUDNN.conv.fp32_precision == CUDNN.rnn.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert CUDNN.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("untouched")
def test_a_cpu_needs_nothing() -> None:
    before = CUDNN.deterministic
    make_gpu_deterministic(torch.device("cpu"))
    assert CUDNN.deterministic == before
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
