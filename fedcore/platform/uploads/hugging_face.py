"""Data sets of Hugging Face's `datasets`, from a folder of this machine or from the hub."""

from collections.abc import Mapping
from typing import Any, BinaryIO

import datasets
import numpy as np
import pyarrow as pa

from fedcore.data.images import as_bytes
from fedcore.errors import UploadError
from fedcore.platform.uploads.arrays import FEATURES, NAMES, TEST
from fedcore.platform.uploads.image_folder import scaled
from fedcore.platform.uploads.tables import parquet_of

HUB = "hf://"


def hugging_face_as_parquet(
    source: str, columns: Mapping[str, str], shape: tuple[int, int, int] | None
) -> BinaryIO:
    """The splits `train` and `test`, or a data set without splits, as Parquet in memory.

    A folder is one of `save_to_disk`; `hf://OWNER/NAME` is downloaded, or taken from the cache of
    `datasets`. The only column of images becomes the features, scaled to -1..1. Raises UploadError.
    """
    try:
        held = (
            datasets.load_dataset(source.removeprefix(HUB))
            if source.startswith(HUB)
            else datasets.load_from_disk(source)
        )
    except Exception as error:
        # Whatever the hub, the cache or a damaged file makes `datasets` raise.
        raise UploadError("", f"{source} cannot be read by `datasets`: {error}") from error
    if isinstance(held, datasets.Dataset):
        return parquet_of(_table(held, columns, shape), columns)
    if "train" not in held:
        raise UploadError("", f"there is no split `train`; splits: {', '.join(held)}")
    test = columns.get(TEST, TEST)
    tables = [
        _table(held[part], columns, shape).append_column(test, pa.array([part == "test"] * len(held[part])))
        for part in ("train", "test")
        if part in held
    ]
    return parquet_of(pa.concat_tables(tables), columns)


def _table(part: Any, columns: Mapping[str, str], shape: tuple[int, int, int] | None) -> Any:
    wanted = columns.get(FEATURES)
    images = [
        name
        for name, kind in part.features.items()
        if isinstance(kind, datasets.Image) and wanted in (None, name)
    ]
    if not images:
        return part.with_format("arrow")[:]
    if len(images) > 1:
        raise UploadError(FEATURES, f"there are several columns of images, {', '.join(images)}: name one")
    kept = [name for name in part.column_names if name in {columns.get(known, known) for known in NAMES}]
    table = part.select_columns([name for name in kept if name != images[0]]).with_format("arrow")[:]
    pictures = part[images[0]]
    if shape is None:
        shape = (1 if pictures[0].mode in ("1", "L") else 3, pictures[0].height, pictures[0].width)
    pixels = scaled(np.stack([as_bytes(picture, shape) for picture in pictures]))
    nested = pa.array(pixels.reshape(-1))
    for length in reversed(pixels.shape[1:]):
        nested = pa.FixedSizeListArray.from_arrays(nested, length)
    return table.append_column(wanted or FEATURES, nested)
