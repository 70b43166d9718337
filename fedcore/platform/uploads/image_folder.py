"""A folder of images: a folder per class, or per domain and class (PACS, Office-Caltech-10)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedcore.data.image_folders import classes_in, files_in, read_images
from fedcore.data.user_datasets import Clients
from fedcore.errors import UploadError
from fedcore.platform.uploads.arrays import Arrays

_PARTS = ("train", "test")


class _Image(NamedTuple):
    file: Path
    label: str
    domain: str | None
    test: bool


def read_image_folder(folder: Path, shape: tuple[int, int, int] | None) -> Arrays:
    """Read FOLDER/CLASS/*, FOLDER/DOMAIN/CLASS/*, or the same below FOLDER/train and FOLDER/test.

    Classes are numbered in alphabetical order; domains are the clients. Pixels are scaled to -1..1.
    Raises UploadError.
    """
    images = list(_images(folder))
    if not images:
        raise UploadError("", f"there are no images in {folder}/CLASS or {folder}/DOMAIN/CLASS")
    classes = sorted({image.label for image in images})
    try:
        with Image.open(images[0].file) as first:
            own = (1 if first.mode in ("1", "L") else 3, first.height, first.width)
        pixels = read_images([image.file for image in images], shape or own)
    except (OSError, UnidentifiedImageError) as error:
        raise UploadError("", f"an image cannot be read: {error}") from error
    domains = [image.domain for image in images]
    return Arrays(
        features=scaled(pixels),
        label=np.array([classes.index(image.label) for image in images]),
        clients=None if None in domains else Clients.of(np.array(domains)),
        test=np.array([image.test for image in images]),
    )


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Bytes as float32 from -1 to 1."""
    return pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)


def _images(folder: Path) -> Iterator[_Image]:
    """The images in the order of training and test, domains, classes and names."""
    names = classes_in(folder)
    parts = [part for part in _PARTS if part in names] if set(names) <= set(_PARTS) else []
    chosen: list[str | None] = [*parts] or [None]
    for part in chosen:
        place = folder if part is None else folder / part
        for name in classes_in(place):
            below = classes_in(place / name)
            for label in below:
                yield from _labelled(files_in(place / name / label), label, name, part)
            if not below:
                yield from _labelled(files_in(place / name), name, None, part)


def _labelled(files: Sequence[Path], label: str, domain: str | None, part: str | None) -> Iterator[_Image]:
    return (_Image(file, label, domain, part == "test") for file in files)
