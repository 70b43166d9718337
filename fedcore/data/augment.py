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
from fedcore.data.base import DatasetSpec
from fedcore.errors import SpecificationError
from fedcore.families import Family
from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.data.federated import Samples


IMAGE_AXES = 3


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


POINTER = "/problem/dataset/augmentation"


class ImageDataset(DatasetSpec):
    """A data set of images [channels, height, width], which may be varied while clients train."""

    augmentation: Augmentation = "none"
    """Random variation of training images in each local step. `crop_flip`: images are padded by 4,
    cropped at random and flipped at random (FedNova, FedAWARE). Or a transform with fields of its own.
    """


def transform_of(dataset: DatasetSpec) -> Transform | None:
    """The transform that the field `augmentation` of a data set, a user's included, names; None for
    `none`, and if the data set has no such field.

    Raises SpecificationError for another value, or for data that are no images.
    """
    named = getattr(dataset, "augmentation", None)
    if named in (None, "none"):
        return None
    transform = CropFlip(kind="crop_flip") if named == "crop_flip" else named
    if not isinstance(transform, Transform):
        raise SpecificationError(POINTER, f"must be `none`, `crop_flip` or a transform, not {named!r}")
    shape = dataset.shape()
    if len(shape.features) != IMAGE_AXES or shape.symbols:
        raise SpecificationError(
            POINTER,
            f"varies images [channels, height, width], but the features of {dataset.kind} are"
            f" {list(shape.features)}{' symbols' * (shape.symbols > 0)}: omit it",
        )
    return transform


def black_of(images: Samples) -> Tensor:
    """[channels] the value of a black pixel: what the byte 0 stands for; of real numbers, the smallest."""
    if images.scale is None:
        return images.features.amin((0, 2, 3))
    return images.scale.numbers(torch.zeros(images.features.shape[1], 1, 1)).flatten()


@dataclass(frozen=True, slots=True)
class Augmented:
    """A transform of the images of a data set."""

    transform: Transform
    shape: tuple[int, ...]
    """Shape of one image."""
    black: Tensor
    """[channels] the value of a black pixel."""

    @property
    def views(self) -> int:
        """Number of views of an image."""
        return self.transform.view_count(self.shape)

    def to(self, device: str, dtype: torch.dtype) -> Augmented:
        """The transform for images on another device and of another type."""
        return replace(self, black=self.black.to(device, dtype))

    def see(self, images: Tensor, views: Tensor) -> Tensor:
        """The images [..., channels, height, width], each in its view of `views` [...]."""
        shape = images.shape
        seen = self.transform.see(images.reshape(-1, *shape[-3:]), views.flatten(), self.black)
        return seen.reshape(shape).contiguous()
