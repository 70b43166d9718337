"""Data sets of Hugging Face whose splits differ: read as `train` is, or refused."""

import re
import struct
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Features, Value
from PIL import Image

from fedcore.data.description import description_rows
from fedcore.data.user_datasets import UserSamples
from fedcore.errors import UploadError
from fedcore.platform.uploads.local import read_local

Column = tuple[list[Any], Any]
NUMBER, WHOLE = Value("float64"), Value("int64")
SIGNS = ClassLabel(names=["negative", "positive"])


def split(**columns: Column) -> Any:
    """A split of columns, each of values and a type."""
    return datasets.Dataset.from_dict(
        {name: values for name, (values, _) in columns.items()},
        features=Features({name: kind for name, (_, kind) in columns.items()}),
    )


def pictures(*sizes: int) -> Column:
    return [Image.new("L", (size, size), 10 * size) for size in sizes], datasets.Image()


def taken(folder: Path, splits: Any, **columns: str) -> UserSamples:
    held = datasets.DatasetDict(splits) if isinstance(splits, dict) else splits
    held.save_to_disk(str(folder / "hf"))
    return read_local(str(folder / "hf"), columns, None)


def test_test_images_take_the_shape_of_the_first_image_of_train(tmp_path: Path) -> None:
    train = split(img=pictures(8, 8), label=([0, 1], SIGNS))
    samples = taken(tmp_path, {"train": train, "test": split(img=pictures(6), label=([1], SIGNS))})
    assert samples.features.shape == (3, 1, 8, 8)
    assert description_rows(samples.content) == {
        "samples": "2 training + 1 test",
        "features": "shape 1 x 8 x 8",
        "images": "mode L (3), 1x8x8, 1 resized, pixels 60 to 80",
        "label": "label, 2 classes: negative (1 + 0), positive (1 + 1)",
        "clients": "not divided into clients: give a `partition`",
        "test samples": "belong to no client",
    }


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    train = split(img=pictures(8, 8), label=([0, 1], SIGNS))
    train.save_to_disk(str(tmp_path / "hf"))
    (file,) = (tmp_path / "hf").glob("*.arrow")
    content = file.read_bytes()
    first, second = (place.start() for place in re.finditer(rb"\x89PNG", content))
    ends = struct.pack("<ii", 0, second - first)
    assert ends in content
    # Images that are none, are too large, and end before they begin.
    for damage in (
        content.replace(b"\x89PNG", b"\0PNG"),
        content.replace(b"IHDR\0\0\0\x08\0\0\0\x08", b"IHDR\0\0\xea\x60\0\0\xea\x60"),
        content.replace(ends, struct.pack("<ii", 0, -9)),
    ):
        assert damage != content
        file.write_bytes(damage)
        with pytest.raises(UploadError, match=r"image [01] of the split train cannot be read"):
            read_local(str(tmp_path / "hf"), {}, None)
    file.write_bytes(content)
    state = tmp_path / "hf" / "state.json"
    state.write_text(state.read_text().replace('"_format_columns": null', '"_format_columns": []'))
    with pytest.raises(UploadError, match="image 0 of the split train cannot be read"):
        read_local(str(tmp_path / "hf"), {}, None)


def test_columns_of_test_take_order_and_types_of_train(tmp_path: Path) -> None:
    train = split(x=([1.0, 2.0], NUMBER), who=(["a", "b"], Value("string")), label=([0, 1], WHOLE))
    test = split(label=([1], Value("int8")), who=(["b"], Value("large_string")), x=([3], Value("float32")))
    samples = taken(tmp_path, {"train": train, "test": test}, client="who")
    assert samples.features.tolist() == [[1.0], [2.0], [3.0]]
    assert samples.label.tolist() == [0, 1, 1]
    rows = description_rows(samples.content)
    assert rows["features"] == "1: x"
    assert rows["clients"] == "who, 2 clients: a (1 + 0), b (1 + 1)"


def test_classes_are_matched_by_name_over_splits(tmp_path: Path) -> None:
    other = ClassLabel(names=["positive", "negative"])
    train = split(x=([1.0, 2.0], NUMBER), label=([0, 1], SIGNS))
    samples = taken(tmp_path, {"train": train, "test": split(x=([3.0], NUMBER), label=([0], other))})
    assert samples.label.tolist() == [0, 1, 1]


def test_columns_and_splits_that_are_not_used_are_told(tmp_path: Path) -> None:
    held = split(img=pictures(4, 4), fine_label=([0, 1], SIGNS), coarse_label=([0, 0], SIGNS))
    with pytest.raises(UploadError, match=r"--column label=COLUMN: fine_label, coarse_label$"):
        taken(tmp_path / "unnamed", held)
    samples = taken(tmp_path, {"train": held, "validation": held}, label="fine_label")
    rows = description_rows(samples.content)
    assert rows["label"] == "fine_label, 2 classes: negative (1 + 0), positive (1 + 0)"
    assert rows["left out"] == (
        "split validation: 2 samples, neither train nor test; column coarse_label: not used beside images"
    )


TRAIN: dict[str, Column] = {"x": ([1.0, 2.0], NUMBER), "label": ([0, 1], SIGNS)}


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ({"label": ([0], SIGNS)}, "x: is a column of the split train, but not of test"),
        ({**TRAIN, "y": ([1, 2], WHOLE)}, "y: is a column of the split test, but not of train"),
        ({**TRAIN, "x": (["a", "b"], Value("string"))}, "x: the split test does not fit the split train"),
        (
            {**TRAIN, "label": ([0, 1], WHOLE)},
            "label: has names of classes in one of the splits train and test",
        ),
        (
            {**TRAIN, "label": ([-1, -1], SIGNS)},
            "label: is -1 for 2 of the 2 samples of the split test, .*leave them",
        ),
        (
            {**TRAIN, "label": ([0, 1], ClassLabel(names=["negative", "neutral"]))},
            "label: has the class 'neutral' in the split test, but not in train",
        ),
    ],
)
def test_splits_that_do_not_fit_are_refused(test: dict[str, Column], told: str, tmp_path: Path) -> None:
    with pytest.raises(UploadError, match=told):
        taken(tmp_path, {"train": split(**TRAIN), "test": split(**test)})


def test_the_index_of_pandas_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(3.0), "label": [0, 1, 0]}, index=[5, 3, 4])
    with pytest.raises(UploadError, match="'__index_level_0__' is the index of a table, not a feature"):
        taken(tmp_path, datasets.Dataset.from_pandas(frame))
