"""PyTorch modules: building them from the seed, dense layers, and memory layout of images."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from fedcore.errors import SpecificationError
from fedcore.models.base import ModelSpec
from fedcore.random import generator

NARROW = 1 << 20
"""Weights of all convolutions up to which images, and not weights, dominate the cost."""


def channels_last(images: Tensor) -> Tensor:
    """A copy of `images` [B, C, H, W] in channels-last layout, which all layers then keep."""
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


def reads_channels_last(module: nn.Module) -> bool:
    """True if `module` is faster on a CPU with channels-last images.

    Max-pooling is up to 14 times as fast, and so are convolutions of few channels. With many
    channels the library reorders the weights in each step: VGG-11 and ResNet-18 take 1.1 to 1.3
    times as long.
    """
    weights = [layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return 0 < sum(weights) <= NARROW


def dense(*widths: int) -> nn.Sequential:
    """Fully connected layers of these widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@contextmanager
def seeded(draw: np.random.Generator) -> Iterator[None]:
    """Seed PyTorch's CPU generator from `draw` within the block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(draw.integers(2**63)))
        yield


def build_module(
    spec: ModelSpec, features: tuple[int, ...], classes: int, seed: int, vectors: Tensor | None = None
) -> nn.Module:
    """The module with its initial parameters, drawn from the run's seed: PyTorch's own, unless the
    model's source has others.

    Convex models too: from zero, a client of one class has exactly equal gradients for all others,
    and which of them top-k keeps would be left to rounding. `vectors` [V, E] stand for the symbols
    of a data set that has such.
    """
    with seeded(generator(seed, "init")):
        module = spec.build(features, classes, vectors)
    refuse_buffers(module)
    return module


def refuse_buffers(module: nn.Module) -> None:
    """Raise SpecificationError for a module that keeps running statistics.

    Fixed buffers, which it does not save, may stay.
    """
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    names = [name for name in module.state_dict() if name not in trained]
    if names:
        why = "averaging running statistics is wrong under heterogeneity; use group norm"
        raise SpecificationError(
            "/problem/model", f"models with buffers ({', '.join(names)}) are refused: {why}"
        )
