"""The models: each specification as an `nn.Module` that maps inputs [B, *features] to scores [B, classes]."""

from itertools import pairwise
from math import prod

from torch import nn

from fedcore.data.random import generator
from fedcore.errors import SpecificationError
from fedcore.models.initial import seeded
from fedcore.spec.problem import AnyModel, Cnn, Linear, Logistic, Mlp

GROUPS = 8
"""Groups of a group norm, or as many as divide the channels."""


def build(spec: AnyModel, features: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The module with PyTorch's own initial parameters, drawn from the run's seed.

    Convex models too: from zero, a client of one class has exactly equal gradients for all others, and which of them top-k
    keeps would be left to rounding.
    """
    with seeded(generator(seed, "init")):
        module = _module(spec, features, classes)
    refuse_buffers(module)
    return module


def refuse_buffers(module: nn.Module) -> None:
    """Raise SpecificationError for a module that keeps running statistics."""
    names = [name for name, _ in module.named_buffers()]
    if names:
        why = "averaging running statistics is wrong under heterogeneity; use group norm"
        raise SpecificationError("/problem/model", f"models with buffers ({', '.join(names)}) are refused: {why}")


def _module(spec: AnyModel, features: tuple[int, ...], classes: int) -> nn.Module:
    match spec:
        case Linear() | Logistic():
            return dense(prod(features), classes)
        case Mlp(hidden=hidden):
            return dense(prod(features), *hidden, classes)
        case Cnn():
            return _cnn(spec, features, classes)


def dense(*widths: int) -> nn.Sequential:
    """Fully connected layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn(spec: Cnn, features: tuple[int, ...], classes: int) -> nn.Sequential:
    channels, height, width = features
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *spec.channels)):
        layers.append(nn.Conv2d(fan_in, fan_out, kernel_size=5, padding=2))
        if spec.norm == "group":
            layers.append(nn.GroupNorm(GROUPS if fan_out % GROUPS == 0 else 1, fan_out))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    flat = spec.channels[-1] * (height // 4) * (width // 4)
    return nn.Sequential(*layers, *dense(flat, spec.hidden, classes))
