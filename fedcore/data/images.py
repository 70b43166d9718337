"""Image data sets in one piece: scikit-learn's digits, and those that torchvision reads from files."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.federated import Samples
from fedcore.errors import DataUnavailableError
from fedcore.spec.dataset import Cifar10, Digits, Emnist, FashionMnist, Mnist

Images = Digits | Mnist | FashionMnist | Emnist | Cifar10
DIGITS_TEST_SAMPLES = 360


@dataclass(frozen=True)
class ImageData:
    """Training and test samples, normalised, and what they really are."""

    train: Samples
    test: Samples
    source: str


@dataclass(frozen=True)
class Recipe:
    """How torchvision reads a data set, and the mean and deviation of each channel that it is normalised with."""

    name: str
    open: Callable[..., Any]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def images(spec: Images, data_dir: Path) -> ImageData:
    """Read the data set; raises DataUnavailableError when its files are not under `data_dir`."""
    if isinstance(spec, Digits):
        return _digits()
    recipe = recipes(spec)[spec.kind]
    try:
        train, test = (recipe.open(root=data_dir, train=train, download=False) for train in (True, False))
    except RuntimeError as error:
        copy = data_dir / "cifar10_jpeg"
        if isinstance(spec, Cifar10) and copy.is_dir():
            return _cifar10_jpeg(copy, recipe)
        raise DataUnavailableError(
            f"{recipe.name} is not in {data_dir}: put its files there as torchvision lays them out, set FEDQ_DATA_DIR to where they "
            f"are, or download them with `python -m fedcore.data.download {spec.kind}`"
        ) from error
    return ImageData(_read(train, recipe), _read(test, recipe), recipe.name)


def recipes(spec: Images | None = None) -> Mapping[str, Recipe]:
    """The torchvision data sets by kind; `spec` names the split of EMNIST."""
    from torchvision import datasets  # Heavy, and needed by image data sets only.

    split = spec.split if isinstance(spec, Emnist) else "balanced"

    def emnist(**options: Any) -> Any:
        return datasets.EMNIST(split=split, **options)

    return {
        "mnist": Recipe("MNIST", datasets.MNIST, (0.1307,), (0.3081,)),
        "fashion_mnist": Recipe("Fashion-MNIST", datasets.FashionMNIST, (0.2860,), (0.3530,)),
        "emnist": Recipe(f"EMNIST ({split})", emnist, (0.1751,), (0.3332,)),
        "cifar10": Recipe("CIFAR-10", datasets.CIFAR10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    }


def _read(dataset: Any, recipe: Recipe) -> Samples:
    pixels = torch.as_tensor(dataset.data)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    labels = torch.as_tensor(dataset.targets)
    # The letters split of EMNIST numbers its classes from 1.
    return Samples(_normalise(pixels, recipe), labels - labels.min())


def _normalise(pixels: Tensor, recipe: Recipe) -> Tensor:
    shape = (1, -1, 1, 1)
    mean, deviation = torch.tensor(recipe.mean).view(shape), torch.tensor(recipe.deviation).view(shape)
    return ((pixels / 255 - mean) / deviation).contiguous()


def _cifar10_jpeg(folder: Path, recipe: Recipe) -> ImageData:
    """CIFAR-10 as JPEG re-encodings: lossy, so it goes by another name."""
    train, test = (_decode(folder / f"{part}.npz", recipe) for part in ("train", "test"))
    return ImageData(train, test, "CIFAR-10 (JPEG copy)")


def _decode(path: Path, recipe: Recipe) -> Samples:
    from PIL import Image

    with np.load(path, allow_pickle=False) as arrays:
        data, offsets, labels = arrays["jpeg"].tobytes(), _bounds(arrays["offset"], arrays["jpeg"], arrays["label"]), arrays["label"]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(data[start:stop]))) for start, stop in pairwise(offsets)])
    return Samples(_normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2), recipe), torch.from_numpy(labels.astype(np.int64)))


def _bounds(offsets: NDArray[Any], data: NDArray[Any], labels: NDArray[Any]) -> list[int]:
    bounds = [int(offset) for offset in offsets]
    return bounds if len(bounds) == len(labels) + 1 else [*bounds, len(data)]


def _digits() -> ImageData:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(pixels / 16, labels, test_size=DIGITS_TEST_SAMPLES, stratify=labels, random_state=0)
    train_x, test_x, train_y, test_y = (torch.from_numpy(array) for array in split)
    train, test = (Samples(x.view(-1, 1, 8, 8), y.long()) for x, y in ((train_x, train_y), (test_x, test_y)))
    return ImageData(train, test, "scikit-learn digits")
