"""Transforms: random variation of training samples while clients train.

How a sample is seen is a whole number below `views`, drawn by the engine like the mini-batches are:
keyed by seed, round and client. Your own transform is a subclass of `Transform`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.assurance import Assurance, Assurances
from fedcore.block import Block
from fedcore.families import Family
from fedcore.lazy import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")


class Transform(Block):
    """Random variation of a training sample, one of a finite number of views of it.

    Measures and full gradients use the original samples.
    """

    source: ClassVar[str | None] = None
    """The paper that proposed the transform."""
    assures: ClassVar[Assurances] = frozenset({Assurance.ONE_SAMPLE})
    """Statements about privacy; a class that overrides a method declares its own."""

    if TYPE_CHECKING:
        kind: str

    def view_count(self, shape: tuple[int, ...]) -> int:
        """Number of views of a sample of `shape`, all equally likely."""
        raise NotImplementedError

    def see(self, samples: Tensor, views: Tensor, black: Tensor) -> Tensor:
        """The samples [n, ...], each in its view of `views` [n].

        `black` [channels] is the value of a black pixel.
        """
        raise NotImplementedError


class CropFlip(Transform):
    """An image padded with black on all sides and cropped to its size anywhere, then mirrored or
    not (FedNova, FedAWARE).
    """

    source = "He et al. 2016, Deep Residual Learning for Image Recognition (CVPR), Section 4.2"
    example = {"pad": 4}
    assures = Transform.assures

    kind: Literal["crop_flip"] = "crop_flip"
    pad: Annotated[int, Field(ge=0, le=64)] = 4
    """Number of black pixels on each side."""

    def view_count(self, shape: tuple[int, ...]) -> int:
        return 2 * (2 * self.pad + 1) ** 2

    def see(self, samples: Tensor, views: Tensor, black: Tensor) -> Tensor:
        """The images [n, channels, height, width], each in its view of `views` [n].

        With s = 2 pad + 1, view 2 (s top + left) + mirrored is the crop that begins at row `top` and
        column `left` of the padded image.
        """
        side, padded = 2 * self.pad + 1, self._padded(samples, black)
        top, left, mirrored = views // (2 * side), views // 2 % side, (views % 2).bool()
        rows = top[:, None] + torch.arange(samples.shape[-2], device=views.device)
        columns = torch.arange(samples.shape[-1], device=views.device).expand(len(views), -1)
        columns = left[:, None] + torch.where(mirrored[:, None], columns.flip(1), columns)
        image = torch.arange(len(views), device=views.device)[:, None, None]
        return padded.movedim(1, -1)[image, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)

    def _padded(self, images: Tensor, black: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        padded = images.new_empty(count, channels, height + 2 * self.pad, width + 2 * self.pad)
        padded.copy_(black[:, None, None])
        padded[:, :, self.pad : self.pad + height, self.pad : self.pad + width] = images
        return padded


class Cutout(Transform):
    """A square of an image is blackened; its centre is any pixel, so it may reach beyond the
    border.
    """

    source = "DeVries and Taylor 2017, Improved Regularization of CNNs with Cutout (arXiv:1708.04552)"
    example = {"size": 8}
    assures = Transform.assures

    kind: Literal["cutout"] = "cutout"
    size: Annotated[int, Field(ge=1, le=1_024)] = 16
    """Side of the square."""

    def view_count(self, shape: tuple[int, ...]) -> int:
        return shape[-2] * shape[-1]

    def see(self, samples: Tensor, views: Tensor, black: Tensor) -> Tensor:
        """View r width + c of an image blackens the square of rows r - size // 2 + [0, size) and
        columns c - size // 2 + [0, size).
        """
        height, width = samples.shape[-2:]
        rows = self._covered(views // width, height)
        columns = self._covered(views % width, width)
        covered = (rows[:, :, None] & columns[:, None, :])[:, None]
        return torch.where(covered, black[:, None, None], samples)

    def _covered(self, centres: Tensor, length: int) -> Tensor:
        """[n, length] the pixels of a row or column that the squares around `centres` [n] cover."""
        offset = torch.arange(length, device=centres.device) - centres[:, None] + self.size // 2
        return (offset >= 0) & (offset < self.size)


TRANSFORMS = Family("transforms", Transform, (CropFlip, Cutout))

AnyTransform = Annotated[Transform, TRANSFORMS]

Augmentation = Literal["none", "crop_flip"] | AnyTransform
"""`crop_flip` is short for the transform of this kind with its defaults."""


def transform_of(augmentation: Augmentation) -> Transform | None:
    """The transform that a field `augmentation` names; None for `none`."""
    if isinstance(augmentation, Transform):
        return augmentation
    return CropFlip(kind="crop_flip") if augmentation == "crop_flip" else None


@dataclass(frozen=True, slots=True)
class Augmented:
    """A transform of the images of a data set."""

    transform: Transform
    shape: tuple[int, ...]
    """Of one image."""
    black: Tensor
    """[channels] the value of a black pixel."""

    @property
    def views(self) -> int:
        """Number of views of an image."""
        return self.transform.view_count(self.shape)

    def to(self, device: str, dtype: torch.dtype) -> Augmented:
        """The same on another device and in another type."""
        return replace(self, black=self.black.to(device, dtype))

    def see(self, images: Tensor, views: Tensor) -> Tensor:
        """The images [..., channels, height, width], each in its view of `views` [...]."""
        shape = images.shape
        seen = self.transform.see(images.reshape(-1, *shape[-3:]), views.flatten(), self.black)
        return seen.reshape(shape).contiguous()
