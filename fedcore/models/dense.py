"""Fully connected layers."""

from itertools import pairwise

from torch import nn


def dense(*widths: int) -> nn.Sequential:
    """Fully connected layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
