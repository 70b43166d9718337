"""What a sample costs in memory on its way through a model."""

import torch
from torch import Tensor, nn


def sample_bytes(module: nn.Module, sample: Tensor) -> int:
    """Bytes of `sample` [1, ...] and of every layer's output for it: about what a gradient keeps of each sample."""
    sizes = [sample.nbytes]
    layers = [layer for layer in module.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(lambda _layer, _inputs, output: sizes.append(output.nbytes)) for layer in layers]
    with torch.no_grad():
        module(sample)
    for hook in hooks:
        hook.remove()
    return sum(sizes)
