"""Gradients of a sequence of convolutions, max-pooling, ReLU, dropout and dense layers, with
backpropagation written by hand.

The overhead of automatic differentiation is left out: gradients are written where they belong in
the flat vector, ReLU works in place, after pooling instead of before it or fused with it, and no
gradient with respect to the samples is computed. The numbers agree with automatic differentiation
to rounding.

The first convolution is fused with the pooling behind it: its backward pass takes a few images at a
time, so that everything stays in the core's cache. For images with few channels the library takes
twice as long as a matrix product for the gradient of the weights, and the input of pooling is four
times as large as its output.

With dropout the gradients have the bits of automatic differentiation, which existing runs with
dropout were trained by: the first convolution is not fused, and the loss is differentiated
automatically.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from fedcore.models.flat import Layout, has_hooks
from fedcore.models.forward import Site
from fedcore.models.layers import channels_last
from fedcore.models.losses import Loss
from fedcore.problems.layers import (
    UNIFORM,
    Backward,
    Convolution,
    Dropout,
    Flatten,
    Layer,
    LinearLayer,
    MaxPooling,
    Named,
    PooledRelu,
    Relu,
    array_of,
    pixels_of,
    pool,
)

CACHED_BYTES = 3 << 19
"""Memory of a step of the backward pass: most of a core's own cache."""


@dataclass(frozen=True, slots=True)
class FusedStem:
    """A convolution of samples, nn.MaxPool2d(2) and nn.ReLU, on images with channels last."""

    convolution: Convolution
    cached_bytes: int = CACHED_BYTES

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        images, _ = self.convolution(inputs, parameters, gradients)
        channels, *size = images.shape[1:]
        pooled, places = pool(images)

        def back(error: Tensor) -> Tensor:
            from fedcore.problems import pooling

            errors, (down, across) = pixels_of(error), self.convolution.padding
            planes = array_of(nn.functional.pad(inputs.contiguous(), (across, across, down, down)))
            weight = gradients[self.convolution.prefix + "weight"]
            seen = weight[0].numel()
            together = max(1, self.cached_bytes // (error.element_size() * prod(size) * (seen + channels)))
            spread = error.new_empty(together, *size, channels)
            # The last row is what the bias sees.
            patches = error.new_ones(seen + 1, together, *size)
            laid = (
                array_of(spread),
                array_of(patches[:-1].view(*weight.shape[1:], together, *size)),
            )
            left, right = patches.flatten(1), spread.flatten(0, 2)
            gradient = weight.new_zeros(seen + 1, channels)
            for start in range(0, len(errors), together):
                pooling.lay_out(errors, places, planes, start, *laid)
                if gradient.dtype == error.dtype:
                    gradient.addmm_(left, right)
                else:
                    gradient.add_(left @ right)
            weight.copy_(gradient[:-1].mT.reshape(weight.shape))
            if self.convolution.biased:
                gradients[self.convolution.prefix + "bias"].copy_(gradient[-1])
            return error

        return pooled, back


NARROW = 16
"""Channels from which the library is as fast as a matrix product at the gradient of a convolution's
weights.
"""
KNOWN = {nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.ReLU, nn.Flatten}


class Chain:
    """The gradient of a weighted mean loss of a module that `supported_layers` can take apart."""

    def __init__(
        self,
        layers: Sequence[Layer],
        layout: Layout,
        loss: Loss,
        *,
        last: bool = False,
        autocast: bool = False,
    ) -> None:
        """With `last`, images are laid out with channels last; with `autocast` the layers compute in
        bfloat16, and the loss in the type of theta, as of the gradient.
        """
        self._layers, self._layout, self._loss = layers, layout, loss
        self._last, self._autocast = last, autocast
        self._drops = any(isinstance(layer, Dropout) for layer in layers)
        self._first = next(
            k for k, layer in enumerate(layers) if isinstance(layer, Convolution | FusedStem | LinearLayer)
        )

    def __call__(
        self,
        theta: Tensor,
        features: Tensor,
        labels: Tensor,
        weights: Tensor,
        uniform: Tensor | None = None,
    ) -> Tensor:
        """The gradient [D] at `theta` [D] over features [B, ...], labels [B] and weights [B], with
        `uniform` numbers [B, T] for layers with dropout.
        """
        gradient = torch.empty_like(theta)
        computed = torch.bfloat16 if self._autocast else theta.dtype
        parameters, gradients = self._layout.named(theta.to(computed)), self._layout.named(gradient)
        if uniform is not None:
            parameters = {**parameters, UNIFORM: uniform}
        images = features.to(computed)
        signal, ways = channels_last(images) if self._last else images, []
        for layer in self._layers:
            signal, back = layer(signal, parameters, gradients)
            ways.append(back)
        error = self._error(signal.to(theta.dtype), labels, weights).to(computed)
        # No further than the first that has parameters.
        for back in reversed(ways[self._first :]):
            error = back(error)
        return gradient

    def _error(self, scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The gradient over the `scores` [B, C]."""
        if not self._drops:
            targets = self._loss.targets(labels, scores.shape[1], scores.dtype)
            return self._loss.predict(scores.mT).mT.sub(targets).mul_(weights[:, None])
        leaf = scores.requires_grad_()
        (error,) = torch.autograd.grad(self._loss.per_sample(leaf, labels) @ weights, leaf)
        return error


def supported_layers(
    module: nn.Module, *, last: bool = False, sites: Sequence[Site] = ()
) -> list[Layer] | None:
    """Return the layers of `module`, if it is a sequence of supported layers and ends with scores
    [B, C].

    With `last`, for images with channels last. A module in training has dropout at `sites`.
    """
    found = [(name, layer) for name, layer in module.named_modules() if type(layer) is not nn.Sequential]
    kinds = [type(layer) for _, layer in found]
    known = {*KNOWN, nn.Dropout} if sites else KNOWN
    if not set(kinds) <= known or kinds[-1] is not nn.Linear or _unflattened(kinds) or _extraordinary(module):
        return None
    first = next(name for name, layer in found if list(layer.parameters()))
    # Layers that drop nothing have no site.
    found = [(name, layer) for name, layer in found if not isinstance(layer, nn.Dropout) or layer.p > 0]
    places = iter(sites)
    made = [
        Dropout(layer.p, next(places))
        if isinstance(layer, nn.Dropout)
        else _layer(f"{name}.", layer, name == first)
        for name, layer in found
    ]
    row = [layer for layer in made if layer is not None]
    return _reordered(_in_one_go(row, fused=not sites) if last else row) if len(row) == len(made) else None


def _layer(prefix: str, layer: nn.Module, first: bool) -> Layer | None:
    """Return the layer, or None if one of its options is not supported."""
    match layer:
        case nn.Conv2d(padding=tuple(), padding_mode="zeros"):
            how = layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups
            narrow = layer.in_channels < NARROW and how[0] == how[2] == (1, 1) and layer.groups == 1
            return Convolution(prefix, how, layer.bias is not None, first, narrow)
        case nn.Linear():
            return LinearLayer(prefix, layer.bias is not None, first)
        case nn.MaxPool2d(return_indices=False):
            return MaxPooling(
                (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
            )
        case nn.Flatten(start_dim=1, end_dim=-1):
            return Flatten()
        case nn.ReLU():
            return Relu()
    return None


def _unflattened(kinds: list[type[nn.Module]]) -> bool:
    """Return True if a dense layer reads anything but vectors [B, d]."""
    return nn.Flatten not in kinds[: kinds.index(nn.Linear)]


def _extraordinary(module: nn.Module) -> bool:
    """Return True if layers share parameters, some are not trained, or they have hooks and the
    like.
    """
    inside = list(module.modules())
    every = [id(parameter) for layer in inside for parameter in layer.parameters(recurse=False)]
    return (
        has_hooks(module)
        or not all(parameter.requires_grad for parameter in module.parameters())
        or len(set(every)) < len(every)
        or len(list(module.named_modules(remove_duplicate=False))) > len(inside)
    )


def _in_one_go(row: list[Layer], *, fused: bool) -> list[Layer]:
    """Fuse adjacent ReLU and pooling into one layer, where there is machine code for both; if `fused`,
    with the first convolution.
    """
    made: list[Layer] = []
    for layer in row:
        pair = [*made[-1:], layer]
        if {type(part) for part in pair} == {Relu, MaxPooling} and all(
            part.halves for part in pair if isinstance(part, MaxPooling)
        ):
            made[-1] = PooledRelu()
            before = made[-2] if len(made) > 1 else None
            if fused and isinstance(before, Convolution) and before.first and before.narrow:
                made[-2:] = [FusedStem(before)]
        else:
            made.append(layer)
    return made


def _reordered(row: list[Layer]) -> list[Layer]:
    """Move each ReLU behind the pooling that follows it, and dropout behind flattening: the same
    result with a quarter of the work, and with numbers and mask in the same order in memory.
    """
    row = list(row)
    for k, (layer, after) in enumerate(pairwise(tuple(row))):
        if (type(layer), type(after)) in {(Relu, MaxPooling), (Dropout, Flatten)}:
            row[k], row[k + 1] = after, layer
    return row
