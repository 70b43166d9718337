"""Image data sets in one piece: scikit-learn's digits, and those that torchvision reads from
files.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcore.data.augment import CropFlip
from fedcore.data.datasets import Cifar10, Digits, Emnist, FashionMnist, Mnist
from fedcore.data.federated import Samples, UndividedDataset
from fedcore.errors import DataUnavailableError

Images = Digits | Mnist | FashionMnist | Emnist | Cifar10
DIGITS_TEST_SAMPLES = 360
JPEG_COPY = "cifar10_jpeg"
_UNREADABLE = (RuntimeError, ValueError, AssertionError, OSError)
"""Errors of torchvision for files that are missing, damaged or truncated."""


@dataclass(frozen=True)
class ImageDatasetInfo:
    """How torchvision reads a data set, and the mean and deviation of each channel that it is
    customarily normalised with.
    """

    name: str
    open: Callable[..., Any]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    first_label: int = 0


def images(spec: Images, data_dir: Path) -> UndividedDataset:
    """Read the data set into float32 features [n, channels, height, width].

    Digits are scaled to 0..1; all others to 0..1 and then, channel by channel, by their customary
    mean and deviation, unless the specification says otherwise. Raises DataUnavailableError when
    the files are not under `data_dir` or cannot be read.
    """
    if isinstance(spec, Digits):
        return _digits()
    if isinstance(spec, Cifar10) and spec.augmentation == "crop_flip":
        recipe = image_datasets(spec)[spec.kind]
        black = torch.tensor(
            [-mean / deviation for mean, deviation in zip(recipe.mean, recipe.deviation, strict=True)]
        )
        return replace(images(Cifar10(kind="cifar10"), data_dir), augmentation=CropFlip(4, black))
    recipe = image_datasets(spec)[spec.kind]
    try:
        train, test = (
            _read(recipe.open(root=data_dir, train=train, download=False), recipe) for train in (True, False)
        )
    except _UNREADABLE as error:
        if isinstance(spec, Cifar10) and (data_dir / JPEG_COPY).is_dir():
            return _cifar10_jpeg(data_dir / JPEG_COPY, recipe)
        raise DataUnavailableError(
            f"{recipe.name} cannot be read from {data_dir} ({error}); put its files there as torchvision lays"
            " them out, set FEDQ_DATA_DIR to where they are, or download them with `python -m"
            f" fedcore.data.download {spec.kind}`"
        ) from error
    by_pixel = isinstance(spec, Mnist) and spec.standardise == "pixel"
    pixels = (
        _by_pixel(train[0], test[0]) if by_pixel else [_normalise(part[0], recipe) for part in (train, test)]
    )
    return UndividedDataset(Samples(pixels[0], train[1]), Samples(pixels[1], test[1]), recipe.name)


def image_datasets(spec: Images | None = None) -> Mapping[str, ImageDatasetInfo]:
    """The torchvision data sets by kind; `spec` names the split of EMNIST."""
    from torchvision import datasets  # Heavy, and needed by image data sets only.

    split = spec.split if isinstance(spec, Emnist) else "balanced"

    def emnist(**options: Any) -> Any:
        return datasets.EMNIST(split=split, **options)

    return {
        "mnist": ImageDatasetInfo("MNIST", datasets.MNIST, (0.1307,), (0.3081,)),
        "fashion_mnist": ImageDatasetInfo("Fashion-MNIST", datasets.FashionMNIST, (0.2860,), (0.3530,)),
        "emnist": ImageDatasetInfo(
            f"EMNIST ({split})", emnist, (0.1751,), (0.3332,), first_label=1 if split == "letters" else 0
        ),
        "cifar10": ImageDatasetInfo(
            "CIFAR-10", datasets.CIFAR10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
        ),
    }


def _read(dataset: Any, recipe: ImageDatasetInfo) -> tuple[Tensor, Tensor]:
    """Bytes [n, channels, height, width] and labels [n]."""
    pixels, labels = torch.as_tensor(dataset.data), torch.as_tensor(dataset.targets)
    if len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} images but {len(labels)} labels")
    channels_first = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    return channels_first, labels - recipe.first_label


def _by_pixel(train: Tensor, test: Tensor) -> list[Tensor]:
    """(x - mean) / (deviation + 0.001), x from 0 to 255, each pixel by its own mean and deviation
    over all images.
    """
    pixels = torch.cat([train, test]).float()
    pixels = pixels.sub_(pixels.mean(0)).div_(pixels.std(0, correction=0) + 0.001)
    return [part.contiguous() for part in torch.split(pixels, [len(train), len(test)])]


def _normalise(pixels: Tensor, recipe: ImageDatasetInfo) -> Tensor:
    mean, deviation = (torch.tensor(values).view(1, -1, 1, 1) for values in (recipe.mean, recipe.deviation))
    # In place: the larger sets are gigabytes.
    return (
        pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255).sub_(mean).div_(deviation)
    )


def _cifar10_jpeg(folder: Path, recipe: ImageDatasetInfo) -> UndividedDataset:
    """CIFAR-10 as JPEG re-encodings: lossy, so it goes by another name."""
    train, test = (_decode(folder / f"{part}.npz", recipe) for part in ("train", "test"))
    return UndividedDataset(train, test, "CIFAR-10 (JPEG copy)")


def _decode(path: Path, recipe: ImageDatasetInfo) -> Samples:
    """Read `jpeg` (the files' bytes, one after another), `offset` [n + 1] and `label` [n]."""
    from PIL import Image

    with np.load(path, allow_pickle=False) as arrays:
        data, offsets, labels = (
            arrays["jpeg"].tobytes(),
            arrays["offset"].tolist(),
            arrays["label"].astype(np.int64),
        )
    pixels = np.stack(
        [np.asarray(Image.open(io.BytesIO(data[start:stop]))) for start, stop in pairwise(offsets)]
    )
    return Samples(_normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2), recipe), torch.from_numpy(labels))


def _digits() -> UndividedDataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(
        pixels / 16, labels, test_size=DIGITS_TEST_SAMPLES, stratify=labels, random_state=0
    )
    train_x, test_x, train_y, test_y = (torch.from_numpy(array) for array in split)
    train, test = (Samples(x.view(-1, 1, 8, 8), y.long()) for x, y in ((train_x, train_y), (test_x, test_y)))
    return UndividedDataset(train, test, "scikit-learn digits")
