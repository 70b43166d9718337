from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench.operations import per_sample
from bench.peers import modules
from fedcore.models.recurrent import step_by_step


def _counted(model: dict[str, Any], features: torch.Tensor, classes: int) -> float:
    """Operations a sample, by PyTorch's own count of a step's products."""
    module = modules.module(model, tuple(features.shape[1:]), classes)
    with step_by_step(), FlopCounterMode(display=False) as counter:
        scores = module(features)
        labels = torch.zeros(scores[:, 0].shape, dtype=torch.long)
        torch.autograd.backward(nn.functional.cross_entropy(scores, labels))
    return counter.get_total_flops() / len(features)


def test_products_of_dense_layers_are_those_pytorch_counts() -> None:
    features = torch.randn(3, 1, 4, 5)
    softmax: dict[str, Any] = {"kind": "logistic"}
    mlp: dict[str, Any] = {"kind": "mlp", "hidden": [7, 6]}
    assert per_sample(softmax, (1, 4, 5), 10) == _counted(softmax, features, 10)
    assert per_sample(mlp, (1, 4, 5), 10) == _counted(mlp, features, 10)


def test_products_of_convolutions_are_those_pytorch_counts() -> None:
    model: dict[str, Any] = {"kind": "cnn", "channels": [4, 6], "hidden": [9, 8]}
    assert per_sample(model, (3, 8, 12), 10) == _counted(model, torch.randn(2, 3, 8, 12), 10)


def test_products_of_the_larger_networks_are_those_pytorch_counts() -> None:
    small: dict[str, Any] = {"kind": "dropout_cnn"}
    residual: dict[str, Any] = {"kind": "resnet18", "groups": 2}
    assert per_sample(small, (3, 8, 12), 10) == _counted(small, torch.randn(2, 3, 8, 12), 10)
    assert per_sample(residual, (3, 9, 8), 7) == _counted(residual, torch.randn(1, 3, 9, 8), 7)


def test_products_of_an_lstm_are_those_pytorch_counts() -> None:
    model: dict[str, Any] = {"kind": "char_lstm", "embedding": 3, "hidden": 5, "layers": 2}
    symbols = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    assert per_sample(model, (6,), 11) == _counted(model, symbols, 11)


@pytest.mark.slow
def test_products_of_a_language_model_with_adapters_are_those_pytorch_counts() -> None:
    pytest.importorskip("peft")
    model: dict[str, Any] = {
        "kind": "causal_lm",
        "arguments": {
            "n_layer": 2,
            "n_embd": 8,
            "n_head": 2,
            "n_positions": 8,
            "attn_implementation": "eager",
        },
        "lora": {"rank": 2, "alpha": 4, "targets": ["c_attn"]},
    }
    symbols = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    assert per_sample(model, (6,), 11) == _counted(model, symbols, 11)
