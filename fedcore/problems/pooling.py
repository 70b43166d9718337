"""Max-pooling of 2 x 2 pixels and ReLU in one go, there and back, in machine code; images [B, H, W, C] with channels last.

The library takes two passes each way, and writes eight bytes beside each output to remember where it came from.
"""

from math import isnan
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Images = NDArray[Any]
"""Contiguous."""
Places = NDArray[np.uint8]
"""Which of the four pixels each output is from, row by row; NOWHERE for those that ReLU stopped."""
NOWHERE = 4


@njit(nogil=True, error_model="numpy")
def pool(images: Images, pooled: Images, places: Places) -> None:
    """Fill `pooled` and `places` [B, H // 2, W // 2, C]; of equal numbers the first counts, and NaN counts as the largest."""
    for image in range(pooled.shape[0]):
        for row in range(pooled.shape[1]):
            upper, lower = images[image, 2 * row], images[image, 2 * row + 1]
            for column in range(pooled.shape[2]):
                pixels = upper[2 * column], upper[2 * column + 1], lower[2 * column], lower[2 * column + 1]
                _choose(pixels, pooled[image, row, column], places[image, row, column])


# Called instead of inlined, it would not be vectorised.
@njit(inline="always")
def _choose(pixels: tuple[Images, Images, Images, Images], pooled: Images, places: Places) -> None:
    """The largest of four pixels [C] each, if it is above zero."""
    first, second, third, fourth = pixels
    for channel in range(len(pooled)):
        largest, place = first[channel], np.uint8(0)
        if _beats(second[channel], largest):
            largest, place = second[channel], np.uint8(1)
        if _beats(third[channel], largest):
            largest, place = third[channel], np.uint8(2)
        if _beats(fourth[channel], largest):
            largest, place = fourth[channel], np.uint8(3)
        if largest <= 0:
            largest, place = pooled.dtype.type(0), np.uint8(NOWHERE)
        pooled[channel], places[channel] = largest, place


@njit(nogil=True)
def _beats(number: float, largest: float) -> bool:
    return (number > largest) | isnan(number)


@njit(nogil=True, error_model="numpy")
def spread(errors: Images, places: Places, images: Images) -> None:
    """Fill `images` with the errors of the outputs, [B, H // 2, W // 2, C], where they came from, and with zeros elsewhere."""
    zero = images.dtype.type(0)
    height, width = 2 * errors.shape[1], 2 * errors.shape[2]
    for image in range(errors.shape[0]):
        for row in range(height):
            for column in range(width):
                here = np.uint8(2 * (row % 2) + column % 2)
                error, place = errors[image, row // 2, column // 2], places[image, row // 2, column // 2]
                out = images[image, row, column]
                for channel in range(errors.shape[3]):
                    out[channel] = error[channel] if place[channel] == here else zero
            images[image, row, width:] = zero
        images[image, height:] = zero


@njit(nogil=True, error_model="numpy")
def unfold(planes: Images, patches: Images) -> None:
    """Fill `patches` [C, h, w, B, H, W] with what each weight of a convolution sees of `planes` [B, C, H + h - 1, W + w - 1]."""
    for channel in range(patches.shape[0]):
        for down in range(patches.shape[1]):
            for across in range(patches.shape[2]):
                for image in range(patches.shape[3]):
                    for row in range(patches.shape[4]):
                        out, line = patches[channel, down, across, image, row], planes[image, channel, row + down]
                        for column in range(len(out)):
                            out[column] = line[column + across]
