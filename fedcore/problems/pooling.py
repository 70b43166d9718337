"""Max-pooling of 2 x 2 pixels fused with ReLU, forward and backward, in machine code.

Images are [B, H, W, C] with channels last; bfloat16 is passed as integers of the same bits. The
library takes two passes each way, and writes eight bytes beside each output to remember where it
came from.
"""

from math import isnan
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from fedcore.machine_code import compiled

Images = NDArray[Any]
"""Contiguous."""
Places = NDArray[np.uint8]
"""The one of the four pixels that each output is from, row by row; NOWHERE if ReLU stopped it."""
NOWHERE = 4


@compiled(nogil=True, error_model="numpy")
def pool(images: Images, pooled: Images, places: Places) -> None:
    """Fill `pooled` and `places` [B, H // 2, W // 2, C].

    Of equal numbers the first counts, and NaN counts as the largest.
    """
    for image in range(pooled.shape[0]):
        for row in range(pooled.shape[1]):
            upper, lower = images[image, 2 * row], images[image, 2 * row + 1]
            for column in range(pooled.shape[2]):
                pixels = upper[2 * column], upper[2 * column + 1], lower[2 * column], lower[2 * column + 1]
                _choose(pixels, pooled[image, row, column], places[image, row, column])


# Called instead of inlined, it would not be vectorised.
@compiled(inline="always")
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
        if largest <= 0 and not _is_nan(largest):
            largest, place = pooled.dtype.type(0), np.uint8(NOWHERE)
        pooled[channel], places[channel] = largest, place


@compiled(nogil=True)
def _beats(number: float, largest: float) -> bool:
    return (number > largest) | _is_nan(number)


def _is_nan(number: Any) -> bool:
    return isnan(number)


@overload(_is_nan)
def _is_nan_of(number: Any) -> Any:
    """Machine code of `_is_nan`; integers are the bits of numbers in bfloat16."""

    def of_bits(number: Any) -> bool:
        return (number & 0x7FFF) > 0x7F80  # type: ignore[no-any-return]

    def of_number(number: Any) -> bool:
        return isnan(number)

    return of_bits if isinstance(number, types.Integer) else of_number


@compiled(nogil=True, error_model="numpy")
def spread(errors: Images, places: Places, images: Images) -> None:
    """Fill `images` with the errors of the outputs, [B, H // 2, W // 2, C], where they came from,
    and with zeros elsewhere.
    """
    for image in range(len(errors)):
        _spread(errors[image], places[image], images[image])


@compiled(nogil=True, error_model="numpy")
def _spread(errors: Images, places: Places, pixels: Images) -> None:
    zero = pixels.dtype.type(0)
    height, width = 2 * errors.shape[0], 2 * errors.shape[1]
    for row in range(height):
        for column in range(width):
            here = np.uint8(2 * (row % 2) + column % 2)
            error, place = errors[row // 2, column // 2], places[row // 2, column // 2]
            out = pixels[row, column]
            for channel in range(errors.shape[2]):
                out[channel] = error[channel] if place[channel] == here else zero
        pixels[row, width:] = zero
    pixels[height:] = zero


@compiled(nogil=True, error_model="numpy")
def lay_out(
    errors: Images, places: Places, planes: Images, start: int, spread: Images, patches: Images
) -> None:
    """Write errors to where they came from, for as many images from `start` on as `spread`
    [b, H, W, C] has room for, and zeros beyond the last image.

    Write to `patches` [C, h, w, b, H, W] what each weight of a convolution sees of `planes`
    [B, C, H + h - 1, W + w - 1].
    """
    for place in range(len(spread)):
        image = start + place
        if image < len(errors):
            _spread(errors[image], places[image], spread[place])
            _unfold(planes[image], patches, place)
        else:
            spread[place] = spread.dtype.type(0)


@compiled(nogil=True, error_model="numpy")
def _unfold(planes: Images, patches: Images, place: int) -> None:
    for channel in range(patches.shape[0]):
        for down in range(patches.shape[1]):
            for across in range(patches.shape[2]):
                for row in range(patches.shape[4]):
                    out, line = patches[channel, down, across, place, row], planes[channel, row + down]
                    for column in range(len(out)):
                        out[column] = line[column + across]
