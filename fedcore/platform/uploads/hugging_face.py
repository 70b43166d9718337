"""Data sets of Hugging Face's `datasets`, from a folder of this machine or from the hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedcore.errors import UploadError
from fedcore.platform.uploads.arrays import FEATURES, LABEL, NAMES, TEST
from fedcore.platform.uploads.image_folder import ImageReader, ImageShape, scaled
from fedcore.platform.uploads.parquet import refuse_unlabelled
from fedcore.platform.uploads.tables import Rewritten, parquet_of

HUB = "hf://"


def hugging_face_as_parquet(source: str, columns: Mapping[str, str], shape: ImageShape | None) -> Rewritten:
    """The splits `train` and `test`, or a data set without splits, as Parquet in memory.

    A folder is one of `save_to_disk`; `hf://OWNER/NAME` is downloaded, or taken from the cache of
    `datasets`. The only column of images becomes the features, scaled to -1..1. The split `test` takes
    columns, types, numbers of classes and shape of images from `train`. Raises UploadError.
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
    whole = isinstance(held, datasets.Dataset)
    splits = {"train": held} if whole else held
    if not len(splits.get("train", ())):
        raise UploadError("", f"there is no split `train` with samples; splits: {', '.join(splits)}")
    train, label = splits["train"], columns.get(LABEL, LABEL)
    classes, known = _class_names(train), {given: name for name, given in columns.items()}
    refuse_unlabelled([known.get(name, name) for name in train.column_names], list(classes))
    reader = ImageReader(shape)
    try:
        tables = [
            _Split(name, splits[name], train, columns).table(reader)
            for name in ("train", "test")
            if len(splits.get(name, ()))
        ]
    except (UploadError, MemoryError):
        raise
    except Exception as error:
        # Damaged images and tables are found only now.
        raise UploadError("", f"{source} cannot be read by `datasets`: {error}") from error
    table = pa.concat_tables(tables)
    if not whole:
        test = np.arange(len(table)) >= len(train)
        table = table.append_column(columns.get(TEST, TEST), pa.array(test))
    rewritten = parquet_of(table, columns, classes.get(label, ()))
    left_out = [
        f"split {name}: {len(part):,} samples, neither train nor test"
        for name, part in splits.items()
        if name not in ("train", "test")
    ]
    if reader.used:
        unused = [
            name for name in train.column_names if name not in (*table.column_names, _images(train, columns))
        ]
        left_out += [f"column {name}: not used beside images" for name in unused]
    images = reader.description() if reader.used else None
    return rewritten._replace(origin=replace(rewritten.origin, images=images, left_out=tuple(left_out)))


def _class_names(part: Any) -> dict[str, list[str]]:
    """The names of the classes in each column that has some."""
    return {
        name: list(kind.names)
        for name, kind in part.features.items()
        if isinstance(kind, datasets.ClassLabel)
    }


def _images(part: Any, columns: Mapping[str, str]) -> str | None:
    """The only column of images, or the one that is named; None if there is none."""
    wanted = columns.get(FEATURES)
    images = [
        name
        for name, kind in part.features.items()
        if isinstance(kind, datasets.Image) and wanted in (None, name)
    ]
    if len(images) > 1:
        raise UploadError(FEATURES, f"there are several columns of images, {', '.join(images)}: name one")
    return images[0] if images else None


@dataclass(frozen=True)
class _Split:
    """A split, to be read as `train` is."""

    name: str
    part: Any
    train: Any
    columns: Mapping[str, str]

    def table(self, reader: ImageReader) -> Any:
        """The split in the columns and types of `train`; raises UploadError."""
        images = _images(self.train, self.columns)
        used = {self.columns.get(known, known) for known in NAMES}
        beside = [name for name in self.part.column_names if images is None or name in used]
        wanted = [
            name for name in self.train.column_names if images is None or (name in used and name != images)
        ]
        self._check_columns([*wanted, *([images] if images else [])], beside)
        table = self.part.select_columns(wanted).with_format("arrow")[:]
        schema = self.train.select_columns(wanted).features.arrow_schema
        for place, name in enumerate(wanted):
            column = self._renumbered(name, table.column(name))
            try:
                column = column.cast(schema.field(name).type)
            except pa.ArrowException as error:
                raise UploadError(
                    name, f"the split {self.name} does not fit the split train: {error}"
                ) from error
            table = table.set_column(place, schema.field(name), column)
        table = table.replace_schema_metadata(schema.metadata)
        if images is None:
            return table
        return table.append_column(self.columns.get(FEATURES, FEATURES), self._pixels(images, reader))

    def _check_columns(self, wanted: Sequence[str], given: Sequence[str]) -> None:
        lacking = [name for name in wanted if name not in self.part.column_names]
        if lacking:
            raise UploadError(
                lacking[0],
                f"is a column of the split train, but not of {self.name}: give both the same columns",
            )
        further = [name for name in given if name not in self.train.column_names]
        if further:
            raise UploadError(
                further[0],
                f"is a column of the split {self.name}, but not of train: give both the same columns",
            )

    def _renumbered(self, name: str, column: Any) -> Any:
        """Classes by the numbers that they have in `train`, where names stand for both."""
        known, own = (_class_names(part).get(name) for part in (self.train, self.part))
        if (known is None) != (own is None):
            raise UploadError(name, f"has names of classes in one of the splits train and {self.name} only")
        if known is None or own is None:
            return column
        nameless = pc.sum(pc.less(column, 0)).as_py() or 0
        if nameless and name == self.columns.get(LABEL, LABEL):
            raise UploadError(
                name,
                f"is -1 for {nameless:,} of the {len(column):,} samples of the split {self.name}, which means"
                " that their labels are not published: leave them out, or save another split as `test`",
            )
        if known == own:
            return column
        strangers = [text for text in own if text not in known]
        if strangers:
            raise UploadError(
                name, f"has the class {strangers[0]!r} in the split {self.name}, but not in train"
            )
        numbers = pa.array([known.index(text) for text in own], column.type)
        return numbers.take(column.combine_chunks())

    def _pixels(self, name: str, reader: ImageReader) -> Any:
        """The images in a column as nested lists of numbers."""
        pictures = self.part[name]
        pixels = []
        for row in range(len(pictures)):
            called = f"image {row} of the split {self.name}"
            try:
                picture = pictures[row]
            except MemoryError:
                raise
            except Exception as error:  # Whatever a damaged image makes a decoder raise.
                raise UploadError(FEATURES, f"{called} cannot be read: {error}") from error
            if picture is None:
                raise UploadError(FEATURES, f"{called} is missing: leave the sample out")
            pixels.append(reader.convert(called, picture))
        numbers = scaled(np.stack(pixels))
        nested = pa.array(numbers.reshape(-1))
        for length in reversed(numbers.shape[1:]):
            nested = pa.FixedSizeListArray.from_arrays(nested, length)
        return nested
