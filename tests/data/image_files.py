"""Small image data sets in their true file formats."""

import io
import pickle
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedcore.lazy import LazyModule

datasets: Any = LazyModule("torchvision.datasets")
scipy_io: Any = LazyModule("scipy.io")
Pixels = NDArray[np.uint8]
TRAIN, TEST = 30, 10


def grey(count: int, seed: int) -> Pixels:
    """Images whose classes, those of `labels`, can be told apart: a pattern of each, under noise."""
    patterns = np.random.default_rng(99).integers(0, 129, (10, 7, 7), np.uint8)
    noise = np.random.default_rng(seed).integers(0, 128, (count, 28, 28), np.uint8)
    return patterns[np.arange(count) % 10].repeat(4, axis=1).repeat(4, axis=2) + noise


def colour(count: int, seed: int) -> Pixels:
    """One colour in each quarter, by which classes can be told apart as those of `grey`; JPEG, which
    works on blocks of 8 x 8, keeps it nearly as it is.
    """
    patterns = np.random.default_rng(99).integers(0, 193, (10, 2, 2, 3), np.uint8)
    noise = np.random.default_rng(seed).integers(0, 64, (count, 2, 2, 3), np.uint8)
    return (patterns[np.arange(count) % 10] + noise).repeat(16, axis=1).repeat(16, axis=2)


def labels(count: int, classes: int, first: int = 0) -> Pixels:
    return (np.arange(count) % classes + first).astype(np.uint8)


def write_idx(path: Path, array: Pixels) -> None:
    """The IDX format of MNIST: two zero bytes, a type (8: unsigned bytes), the number of
    dimensions, each as 4 bytes, the data.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def write_mnist(root: Path, folder: str = "MNIST", train: int = TRAIN, test: int = TEST) -> None:
    for part, count, seed in (("train", train, 0), ("t10k", test, 1)):
        write_idx(root / folder / "raw" / f"{part}-images-idx3-ubyte", grey(count, seed))
        write_idx(root / folder / "raw" / f"{part}-labels-idx1-ubyte", labels(count, 10))


def write_emnist(root: Path, split: str, classes: int, first: int) -> None:
    for part, count, seed in (("train", 2 * classes, 0), ("test", classes, 1)):
        write_idx(root / "EMNIST" / "raw" / f"emnist-{split}-{part}-images-idx3-ubyte", grey(count, seed))
        write_idx(
            root / "EMNIST" / "raw" / f"emnist-{split}-{part}-labels-idx1-ubyte",
            labels(count, classes, first),
        )


def write_cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's pickled parts, each with fine and coarse labels."""
    folder = root / "cifar-100-python"
    folder.mkdir()

    def write(name: str, content: dict[str, object]) -> str:
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return md5((folder / name).read_bytes()).hexdigest()

    for name, count, seed in (("train", TRAIN, 0), ("test", TEST, 1)):
        fine = (np.arange(count) * 7 % 100).tolist()
        pixels = colour(count, seed).transpose(0, 3, 1, 2).reshape(count, -1)
        checksum = write(name, {"data": pixels, "fine_labels": fine, "coarse_labels": [0] * count})
        monkeypatch.setattr(datasets.CIFAR100, f"{name}_list", [[name, checksum]])
    checksum = write("meta", {"fine_label_names": [str(label) for label in range(100)]})
    meta = {"filename": "meta", "key": "fine_label_names", "md5": checksum}
    monkeypatch.setattr(datasets.CIFAR100, "meta", meta)


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MATLAB files: X [32, 32, 3, n], and y [n, 1] in which 10 stands for the digit 0."""
    parts = {}
    for name, count, seed in (("train", TRAIN, 0), ("test", TEST, 1)):
        digits = labels(count, 10)
        path = root / f"{name}_32x32.mat"
        pixels = colour(count, seed).transpose(1, 2, 3, 0)
        scipy_io.savemat(path, {"X": pixels, "y": np.where(digits == 0, 10, digits)[:, None]})
        parts[name] = ["", path.name, md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(datasets.SVHN, "split_list", parts)


def write_gtsrb(root: Path) -> None:
    """Traffic signs of several sizes: a folder per class for training, a table for testing."""
    train = root / "gtsrb" / "GTSRB" / "Training"
    test = root / "gtsrb" / "GTSRB" / "Final_Test" / "Images"
    test.mkdir(parents=True)
    for label in range(3):
        (train / f"{label:05}").mkdir(parents=True)
        for number in range(2):
            shade = np.full((20 + label, 30 + number, 3), 40 * label + number, np.uint8)
            Image.fromarray(shade).save(train / f"{label:05}" / f"{number:05}.ppm")
    rows = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for label in (2, 0):
        Image.fromarray(np.full((9, 8, 3), 40 * label, np.uint8)).save(test / f"{label:05}.ppm")
        rows.append(f"{label:05}.ppm;8;9;0;0;8;9;{label}")
    (root / "gtsrb" / "GT-final_test.csv").write_text("\n".join(rows) + "\n")


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch, train: int = TRAIN, test: int = TEST) -> None:
    """Python's pickled batches.

    Torchvision is told their checksums, since it knows only those of the published files.
    """
    folder = root / "cifar-10-batches-py"
    folder.mkdir()

    def write(name: str, content: dict[str, object]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return [name, md5((folder / name).read_bytes()).hexdigest()]

    batches = [write(f"data_batch_{batch}", _cifar_batch(train // 5, batch)) for batch in range(1, 6)]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", batches)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [write("test_batch", _cifar_batch(test, 0))])
    meta, checksum = write("batches.meta", {"label_names": [str(label) for label in range(10)]})
    monkeypatch.setattr(datasets.CIFAR10, "meta", {"filename": meta, "key": "label_names", "md5": checksum})


def _cifar_batch(count: int, seed: int) -> dict[str, object]:
    """Rows of 1,024 red, then green, then blue values."""
    rows = colour(count, seed).transpose(0, 3, 1, 2).reshape(count, -1)
    return {"data": rows, "labels": labels(count, 10).tolist()}


def write_jpeg_copy(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part, count, seed in (("train", TRAIN, 0), ("test", TEST, 1)):
        files = [_jpeg(image) for image in colour(count, seed)]
        offsets = np.cumsum([0, *map(len, files)])
        jpeg = np.frombuffer(b"".join(files), np.uint8)
        np.savez(folder / f"{part}.npz", jpeg=jpeg, offset=offsets, label=labels(count, 10))


def _jpeg(image: Pixels) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=95, subsampling=0)
    return stream.getvalue()
