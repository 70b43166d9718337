"""How images and what is computed from them lie in memory.

Fully connected layers.

PyTorch's own initialisation, from one of our streams and without a trace in PyTorch's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

NARROW = 1 << 20
"""Weights of convolutions, all layers together, up to which their work is in the images and not in
the weights.
"""


def channels_last(images: Tensor) -> Tensor:
    """A copy of `images` [B, C, H, W] in which the numbers of a pixel lie side by side, as those of
    all layers then do.
    """
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


def reads_channels_last(module: nn.Module) -> bool:
    """Whether `module` is faster on a CPU with images laid out so.

    Max-pooling is, up to 14 times, and convolutions of few channels. Where there are many, the
    library brings the weights of each step into another order: VGG-11 and ResNet-18 take 1.1 to 1.3
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
    """Within the block PyTorch's CPU generator is seeded from `draw`; afterwards it is as
    before.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(draw.integers(2**63)))
        yield
