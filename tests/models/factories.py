"""Models as an operator's users write them, sound and unsound."""

from os import getcwd
from typing import Any

import torch
from torch import Tensor, nn

from fedcore.models.layers import dense

__all__ = ["getcwd"]


def plain(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The built-in logistic regression, made elsewhere."""
    return dense(torch.Size(shape).numel(), outputs)


class Attention(nn.Module):
    """A layer that returns a tuple, one that draws its own initial values, and a fixed buffer."""

    fixed: Tensor

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.mixed = nn.MultiheadAttention(shape[-1], 2, batch_first=True)
        self.scale = nn.Parameter(torch.randn(shape[-1]))
        self.register_buffer("fixed", torch.ones(shape[-1]), persistent=False)
        self.scores = nn.Linear(shape[-1], outputs)

    def forward(self, batch: Tensor) -> Tensor:
        rows = batch.flatten(1, -2) * self.scale * self.fixed
        mixed, _ = self.mixed(rows, rows, rows)
        scores: Tensor = self.scores(mixed.mean(1))
        return scores


def wide(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return plain(shape, outputs + 1)


def normalised(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(torch.Size(shape).numel()), nn.Linear(torch.Size(shape).numel(), outputs)
    )


def forgetful(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(plain(shape, outputs), nn.Dropout(0.5))


def frozen(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return plain(shape, outputs).requires_grad_(requires_grad=False)


def narrow(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(3, outputs)


def broken(shape: tuple[int, ...], outputs: int) -> nn.Module:
    raise KeyError("weights.pt")


def number(shape: tuple[int, ...], outputs: int) -> Any:
    return outputs


constant = 5
