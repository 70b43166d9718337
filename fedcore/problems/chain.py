"""Gradients of convolutions, max-pooling, ReLU and dense layers in a row, back-propagated by hand.

What automatic differentiation adds to the arithmetic is left out: gradients are written where they belong in the flat vector,
ReLU works in place, after pooling instead of before it, and nobody computes a gradient with respect to the samples. The
operations are the library's own, so that the numbers are those of automatic differentiation to rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedcore.models.flat import Layout
from fedcore.models.images import channels_last
from fedcore.problems.loss import Loss, targets

aten = torch.ops.aten
Named = Mapping[str, Tensor]
Backward = Callable[[Tensor], Tensor]
"""The error of a layer's outputs to that of its inputs; on the way it writes the gradient of the layer's parameters."""
Layer = Callable[[Tensor, Named, Named], tuple[Tensor, Backward]]
"""Inputs, parameters and the gradients to be written, by name, to outputs and the way back. Only ReLU overwrites its inputs."""
KNOWN = {nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.ReLU, nn.Flatten}


class Chain:
    """The gradient of a weighted mean loss of a module that `layers` can take apart."""

    def __init__(self, layers: Sequence[Layer], layout: Layout, loss: Loss, *, last: bool = False) -> None:
        """With `last`, images are laid out with channels last."""
        self._layers, self._layout, self._loss, self._last = layers, layout, loss, last
        self._first = next(k for k, layer in enumerate(layers) if isinstance(layer, Convolution | Linear))

    def __call__(self, theta: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The gradient [D] at `theta` [D] over features [B, ...], labels [B] and weights [B]."""
        gradient = torch.empty_like(theta)
        parameters, gradients = self._layout.named(theta), self._layout.named(gradient)
        signal, ways = channels_last(features) if self._last else features, []
        for layer in self._layers:
            signal, back = layer(signal, parameters, gradients)
            ways.append(back)
        error = self._loss.predict(signal.mT).mT.sub(targets(labels, signal.shape[1])).mul_(weights[:, None])
        # No further than the first that has parameters.
        for back in reversed(ways[self._first :]):
            error = back(error)
        return gradient


def layers(module: nn.Module) -> list[Layer] | None:
    """What `module` does, layer by layer, if it is a row of those that are known here and ends with scores [B, C]."""
    found = [(name, layer) for name, layer in module.named_modules() if type(layer) is not nn.Sequential]
    kinds = [type(layer) for _, layer in found]
    if not set(kinds) <= KNOWN or kinds[-1] is not nn.Linear or _unflattened(kinds) or _extraordinary(module):
        return None
    first = next(name for name, layer in found if list(layer.parameters()))
    made = [_layer(f"{name}.", layer, name == first) for name, layer in found]
    row = [layer for layer in made if layer is not None]
    return _pool_first(row) if len(row) == len(made) else None


def _layer(prefix: str, layer: nn.Module, first: bool) -> Layer | None:
    """None where an option of the layer is not provided for."""
    match layer:
        case nn.Conv2d(padding=tuple(), padding_mode="zeros"):
            how = layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups
            return Convolution(prefix, how, layer.bias is not None, first)
        case nn.Linear():
            return Linear(prefix, layer.bias is not None, first)
        case nn.MaxPool2d(return_indices=False):
            return MaxPooling((layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode))
        case nn.Flatten(start_dim=1, end_dim=-1):
            return Flatten()
        case nn.ReLU():
            return Relu()
    return None


def _unflattened(kinds: list[type[nn.Module]]) -> bool:
    """Whether a dense layer reads anything but vectors [B, d]."""
    return nn.Flatten not in kinds[: kinds.index(nn.Linear)]


def _extraordinary(module: nn.Module) -> bool:
    """Whether layers share parameters or do more than their kind says."""
    inside = list(module.modules())
    every = [id(parameter) for layer in inside for parameter in layer.parameters(recurse=False)]
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in inside)  # noqa: SLF001 - there is no public way to ask
    return hooked or len(set(every)) < len(every) or len(list(module.named_modules(remove_duplicate=False))) > len(inside)


def _pool_first(row: list[Layer]) -> list[Layer]:
    """The same with each ReLU after the pooling that follows it: the largest of what ReLU lets through, with a quarter of the work."""
    row = list(row)
    for k, (layer, after) in enumerate(pairwise(tuple(row))):
        if isinstance(layer, Relu) and isinstance(after, MaxPooling):
            row[k], row[k + 1] = after, layer
    return row


@dataclass(frozen=True, slots=True)
class Convolution:
    """nn.Conv2d with zero padding."""

    prefix: str
    """Of the names of its parameters."""
    how: tuple[Any, ...]
    """Stride, padding, dilation, not transposed, no padding of the outputs, groups."""
    biased: bool
    first: bool

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        weight, bias = parameters[self.prefix + "weight"], parameters.get(self.prefix + "bias")

        def back(error: Tensor) -> Tensor:
            wanted = not self.first, True, self.biased
            passed, of_weight, of_bias = aten.convolution_backward(error, inputs, weight, weight.shape[:1], *self.how, wanted)
            gradients[self.prefix + "weight"].copy_(of_weight)
            if self.biased:
                gradients[self.prefix + "bias"].copy_(of_bias)
            return error if self.first else passed

        return aten.convolution(inputs, weight, bias, *self.how), back


@dataclass(frozen=True, slots=True)
class Linear:
    """nn.Linear on vectors [B, d]."""

    prefix: str
    biased: bool
    first: bool

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        weight = parameters[self.prefix + "weight"]

        def back(error: Tensor) -> Tensor:
            torch.mm(error.mT, inputs, out=gradients[self.prefix + "weight"])
            if self.biased:
                torch.sum(error, 0, out=gradients[self.prefix + "bias"])
            return error if self.first else error @ weight

        return nn.functional.linear(inputs, weight, parameters.get(self.prefix + "bias")), back


@dataclass(frozen=True, slots=True)
class MaxPooling:
    """nn.MaxPool2d."""

    how: tuple[Any, ...]
    """Size of the window, stride, padding, dilation, whether sizes are rounded up."""

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        *window, ceil = self.how
        window = [(size, size) if isinstance(size, int) else size for size in window]
        pooled, chosen = aten.max_pool2d_with_indices(inputs, *window, ceil)
        return pooled, lambda error: aten.max_pool2d_with_indices_backward(error, inputs, *window, ceil, chosen)


@dataclass(frozen=True, slots=True)
class Relu:
    """nn.ReLU, in place: no layer here needs its outputs on the way back, but for ReLU, which needs no more than their signs."""

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        passed = inputs.relu_()
        return passed, lambda error: aten.threshold_backward(error, passed, 0)


@dataclass(frozen=True, slots=True)
class Flatten:
    """nn.Flatten of all but the first axis."""

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        # Back into the order in memory that the inputs have.
        return inputs.flatten(1), lambda error: torch.empty_like(inputs).copy_(error.view(inputs.shape))
