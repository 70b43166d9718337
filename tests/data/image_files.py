"""Small image data sets in their true file formats."""

import io
import pickle
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets

Pixels = NDArray[np.uint8]
TRAIN, TEST = 30, 10


def grey(count: int, seed: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), np.uint8)


def colour(count: int, seed: int) -> Pixels:
    """One colour in each quarter: what JPEG, which works on blocks of 8 x 8, keeps nearly as
    it is.
    """
    quarters = np.random.default_rng(seed).integers(0, 256, (count, 2, 2, 3), np.uint8)
    return quarters.repeat(16, axis=1).repeat(16, axis=2)


def labels(count: int, classes: int, first: int = 0) -> Pixels:
    return (np.arange(count) % classes + first).astype(np.uint8)


def write_idx(path: Path, array: Pixels) -> None:
    """The IDX format of MNIST: two zero bytes, a type (8: unsigned bytes), the number of
    dimensions, each as 4 bytes, the data.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def write_mnist(root: Path, folder: str = "MNIST", train: int = TRAIN) -> None:
    for part, count, seed in (("train", train, 0), ("t10k", TEST, 1)):
        write_idx(root / folder / "raw" / f"{part}-images-idx3-ubyte", grey(count, seed))
        write_idx(root / folder / "raw" / f"{part}-labels-idx1-ubyte", labels(count, 10))


def write_emnist(root: Path, split: str, classes: int, first: int) -> None:
    for part, count, seed in (("train", 2 * classes, 0), ("test", classes, 1)):
        write_idx(root / "EMNIST" / "raw" / f"emnist-{split}-{part}-images-idx3-ubyte", grey(count, seed))
        write_idx(
            root / "EMNIST" / "raw" / f"emnist-{split}-{part}-labels-idx1-ubyte",
            labels(count, classes, first),
        )


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's pickled batches.

    Torchvision is told their checksums, since it knows only those of the published files.
    """
    folder = root / "cifar-10-batches-py"
    folder.mkdir()

    def write(name: str, content: dict[str, object]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return [name, md5((folder / name).read_bytes()).hexdigest()]

    batches = [write(f"data_batch_{batch}", _cifar_batch(TRAIN // 5, batch)) for batch in range(1, 6)]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", batches)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [write("test_batch", _cifar_batch(TEST, 0))])
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
