"""What a sample costs in memory on its way through a model."""

from typing import Any

import torch
from torch import Tensor, nn

LSTM_KEEPS = 6
"""Times its outputs that a layer of an LSTM keeps: four gates, the cell and the output of every step."""


def sample_bytes(module: nn.Module, sample: Tensor) -> int:
    """Bytes of `sample` [1, ...] and of every layer's output for it: about what a gradient keeps of each sample."""
    sizes = [sample.nbytes]
    layers = [layer for layer in module.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(lambda layer, _inputs, output: sizes.append(_kept(layer, output))) for layer in layers]
    with torch.no_grad():
        module(sample)
    for hook in hooks:
        hook.remove()
    return sum(sizes)


def _kept(layer: nn.Module, output: Any) -> int:
    if isinstance(layer, nn.RNNBase):
        return LSTM_KEEPS * layer.num_layers * int(output[0].nbytes)
    if isinstance(output, tuple | list):
        return sum(_kept(layer, part) for part in output)
    return output.nbytes if isinstance(output, Tensor) else 0
