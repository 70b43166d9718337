"""Layers with their backward pass: the library's operations, and machine code where that is several
times as fast.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcore.models.forward import Site, dropout_mask

aten = torch.ops.aten
Named = Mapping[str, Tensor]
Backward = Callable[[Tensor], Tensor]
"""The error of a layer's outputs to that of its inputs; on the way it writes the gradient of the
layer's parameters.
"""
Layer = Callable[[Tensor, Named, Named], tuple[Tensor, Backward]]
"""Inputs, parameters and the gradients to be written, by name, to outputs and the way back.

Only ReLU overwrites its inputs.
"""
UNIFORM = "uniform"
"""Name, beside the names of parameters, of the uniform numbers [B, T] that dropout reads."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """nn.Conv2d with zero padding."""

    prefix: str
    """Prefix of the names of its parameters."""
    how: tuple[Any, ...]
    """Stride, padding, dilation, not transposed, no padding of the outputs, groups."""
    biased: bool
    first: bool
    narrow: bool
    """True if it reads few channels, each pixel with its neighbours."""

    @property
    def padding(self) -> tuple[int, int]:
        """Rows above and below, columns left and right."""
        down, across = self.how[1]
        return down, across

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        weight, bias = parameters[self.prefix + "weight"], parameters.get(self.prefix + "bias")

        def back(error: Tensor) -> Tensor:
            wanted = not self.first, True, self.biased
            passed, of_weight, of_bias = aten.convolution_backward(
                error, inputs, weight, weight.shape[:1], *self.how, wanted
            )
            gradients[self.prefix + "weight"].copy_(of_weight)
            if self.biased:
                gradients[self.prefix + "bias"].copy_(of_bias)
            return error if self.first else passed

        return aten.convolution(inputs, weight, bias, *self.how), back


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """nn.Linear on vectors [B, d]."""

    prefix: str
    biased: bool
    first: bool

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        weight = parameters[self.prefix + "weight"]

        def back(error: Tensor) -> Tensor:
            gradient = gradients[self.prefix + "weight"]
            if gradient.dtype == error.dtype:
                torch.mm(error.mT, inputs, out=gradient)
            else:
                gradient.copy_(error.mT @ inputs)
            if self.biased:
                torch.sum(error, 0, dtype=gradient.dtype, out=gradients[self.prefix + "bias"])
            return error if self.first else error @ weight

        return nn.functional.linear(inputs, weight, parameters.get(self.prefix + "bias")), back


@dataclass(frozen=True, slots=True)
class MaxPooling:
    """nn.MaxPool2d."""

    how: tuple[Any, ...]
    """Size of the window, stride, padding, dilation, whether sizes are rounded up."""

    @property
    def halves(self) -> bool:
        """True if it takes 2 x 2 pixels to one."""
        *window, ceil = self.how
        return not ceil and [np.unique(size).tolist() for size in window] == [[2], [2], [0], [1]]

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        *window, ceil = self.how
        window = [(size, size) if isinstance(size, int) else size for size in window]
        pooled, chosen = aten.max_pool2d_with_indices(inputs, *window, ceil)
        return pooled, lambda error: aten.max_pool2d_with_indices_backward(
            error, inputs, *window, ceil, chosen
        )


@dataclass(frozen=True, slots=True)
class Relu:
    """nn.ReLU, in place: no layer here needs its outputs on the way back, but for ReLU, which needs
    no more than their signs.
    """

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        passed = inputs.relu_()
        return passed, lambda error: aten.threshold_backward(error, passed, 0)


@dataclass(frozen=True, slots=True)
class Dropout:
    """nn.Dropout in training, with given random numbers."""

    p: float
    site: Site

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        # The inputs may be flattened already.
        numbers = self.site.lay_out(parameters[UNIFORM]).reshape(inputs.shape)
        mask = dropout_mask(numbers, self.p, inputs.dtype)
        return inputs * mask, lambda error: error * mask


@dataclass(frozen=True, slots=True)
class Flatten:
    """nn.Flatten of all but the first axis."""

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        # Back into the order in memory that the inputs have.
        return inputs.flatten(1), lambda error: torch.empty_like(inputs).copy_(error.view(inputs.shape))


@dataclass(frozen=True, slots=True)
class PooledRelu:
    """nn.MaxPool2d(2) and nn.ReLU, in either order, on images with channels last."""

    def __call__(self, inputs: Tensor, parameters: Named, gradients: Named) -> tuple[Tensor, Backward]:
        pooled, places = pool(inputs)

        def back(error: Tensor) -> Tensor:
            from fedcore.problems import pooling

            spread = torch.empty_like(inputs, memory_format=torch.channels_last)
            pooling.spread(pixels_of(error), places, pixels_of(spread))
            return spread

        return pooled, back


def pool(images: Tensor) -> tuple[Tensor, NDArray[np.uint8]]:
    """Images [B, C, H, W] pooled and rectified, and where the numbers are from, [B, H // 2, W // 2,
    C].
    """
    # Here, because machine code is made at the first use, which takes about a second.
    from fedcore.problems import pooling

    count, channels, height, width = images.shape
    pooled = images.new_empty(count, height // 2, width // 2, channels)
    places = np.empty(pooled.shape, np.uint8)
    pooling.pool(pixels_of(images), array_of(pooled), places)
    return pooled.permute(0, 3, 1, 2), places


def pixels_of(images: Tensor) -> NDArray[Any]:
    """Return images [B, C, H, W] as an array [B, H, W, C], contiguous; without a copy if they are
    laid out so.
    """
    return array_of(images.permute(0, 2, 3, 1).contiguous())


def array_of(numbers: Tensor) -> NDArray[Any]:
    """Return the numbers without a copy; bfloat16, which NumPy lacks, as integers of the same bits.

    Positive numbers have the order of their bits, which is enough to pool, rectify and move them.
    """
    return (numbers.view(torch.int16) if numbers.dtype == torch.bfloat16 else numbers).numpy()
