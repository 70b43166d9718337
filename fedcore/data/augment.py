"""Random views of images: cropped after padding, and mirrored.

How a sample is seen is a whole number below `views`, drawn by the engine like the mini-batches are:
keyed by seed, round and client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CropFlip:
    """An image padded by `pad` on all sides and cropped to its size anywhere, then mirrored or not.

    All views are equally likely.
    """

    pad: int
    fill: Tensor
    """[channels] what is padded with."""

    @property
    def views(self) -> int:
        """In how many ways an image may be seen."""
        return 2 * (2 * self.pad + 1) ** 2

    def to(self, device: str, dtype: torch.dtype) -> CropFlip:
        """The same on another device and in another type."""
        return replace(self, fill=self.fill.to(device, dtype))

    def see(self, images: Tensor, views: Tensor) -> Tensor:
        """The images [..., channels, height, width], each in its view of `views` [...].

        With s = 2 pad + 1, view 2 (s top + left) + mirrored is the crop that begins at row `top` and
        column `left` of the padded image.
        """
        shape, side = images.shape, 2 * self.pad + 1
        padded, flat = self._padded(images.reshape(-1, *shape[-3:])), views.flatten()
        top, left, mirrored = flat // (2 * side), flat // 2 % side, (flat % 2).bool()
        rows = top[:, None] + torch.arange(shape[-2], device=flat.device)
        columns = torch.arange(shape[-1], device=flat.device).expand(len(flat), -1)
        columns = left[:, None] + torch.where(mirrored[:, None], columns.flip(1), columns)
        image = torch.arange(len(flat), device=flat.device)[:, None, None]
        seen = padded.movedim(1, -1)[image, rows[:, :, None], columns[:, None, :]]
        return seen.movedim(-1, 1).reshape(shape).contiguous()

    def _padded(self, images: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        padded = images.new_empty(count, channels, height + 2 * self.pad, width + 2 * self.pad)
        padded.copy_(self.fill[:, None, None])
        padded[:, :, self.pad : self.pad + height, self.pad : self.pad + width] = images
        return padded
