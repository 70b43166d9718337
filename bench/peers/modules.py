"""The models of the workloads as a PyTorch user writes them, with FedQ's names for their
parameters.
"""

from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from bench.peers.common import Arrays, Task


def build(task: Task) -> nn.Module:
    """The module, with the parameters that the task starts from."""
    made = module(task.model, task.shape, task.classes)
    load(made, task.initial)
    return made


def load(module: nn.Module, arrays: Arrays) -> None:
    """Set its parameters."""
    module.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})


def arrays(module: nn.Module) -> Arrays:
    """Its parameters."""
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def module(model: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The module with parameters as PyTorch draws them."""
    match model["kind"]:
        case "logistic":
            return _dense(prod(shape), classes)
        case "mlp":
            return _dense(prod(shape), *model["hidden"], classes)
        case "cnn":
            return _cnn(model, shape, classes)
        case "char_lstm":
            return CharacterLstm(model, classes)
        case kind:
            raise ValueError(f"there is no module for the model {kind}")


def _dense(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn(model: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Sequential:
    channels, height, width = shape
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *model["channels"])):
        layers += [nn.Conv2d(fan_in, fan_out, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    flat = model["channels"][-1] * (height // 4) * (width // 4)
    return nn.Sequential(*layers, *_dense(flat, *model["hidden"], classes))


class CharacterLstm(nn.Module):
    """Scores for the character that follows."""

    def __init__(self, model: dict[str, Any], symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, model["embedding"])
        self.lstm = nn.LSTM(model["embedding"], model["hidden"], model["layers"], batch_first=True)
        self.output = nn.Linear(model["hidden"], symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols [B, T] to scores [B, classes]."""
        outputs, _ = self.lstm(self.embedding(symbols.int()))
        scores: Tensor = self.output(outputs[:, -1])
        return scores
