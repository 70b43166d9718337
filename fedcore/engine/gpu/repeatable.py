"""What makes a GPU compute the same bits every time, and in the precision that was asked for."""

import os
from typing import Any

import torch


def repeatable(device: torch.device) -> None:
    """Have PyTorch's libraries for GPUs do so in this process, if `device` is one; changes their settings.

    As they come, convolutions and LSTMs in float32 are computed in TensorFloat-32, three digits instead of seven, and sums may be
    taken in the order in which threads arrive.
    """
    if device.type != "cuda":
        return
    cudnn: Any = torch.backends.cudnn
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "ieee"
    cudnn.deterministic, cudnn.benchmark = True, False
    # cuBLAS reads it when it is first used; without it, products on several streams may differ, as may cuDNN's LSTMs.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
