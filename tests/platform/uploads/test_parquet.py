"""Parquet: the same samples as NPZ, and never believed."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedcore.errors import UploadError
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.parquet import _feature_columns
from tests.platform.uploads.files import LIMITS, arrays, npz, parquet, table, take


def _refusal(data: bytes, limits: UploadLimits = LIMITS) -> UploadError:
    with pytest.raises(UploadError) as refused:
        take(data, limits)
    return refused.value


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"row_group_size": 7, "compression": "zstd"}, {"use_dictionary": False}]
)
def test_a_column_per_number_and_a_list_column_hold_what_an_npz_does(lists: bool, options: Any) -> None:
    held = arrays()
    assert take(parquet(held, lists=lists, **options)).digest == take(npz(held)).digest


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_text_ids_of_every_kind_name_the_same_clients(kind: str) -> None:
    held = arrays()
    ids = pa.array(held["client"].tolist(), pa.large_string() if kind == "large_string" else pa.string())
    columns = {**held, "client": ids.dictionary_encode() if kind == "dictionary" else ids}
    assert take(parquet(columns)).digest == take(npz(held)).digest


def test_whole_numbers_can_be_ids() -> None:
    held = arrays(client=np.arange(60) % 7 - 3)
    assert take(parquet(held)).digest == take(npz(held)).digest


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32", "int64", "bool"])
def test_features_of_one_type_keep_it_as_in_an_npz(kind: str) -> None:
    held = arrays(features=(np.arange(240).reshape(60, 4) % 9).astype(kind))
    assert take(parquet(held)).digest == take(parquet(held, lists=True)).digest == take(npz(held)).digest


def test_images_are_lists_of_lists() -> None:
    images = np.arange(60 * 2 * 3 * 4, dtype=np.float32).reshape(60, 2, 3, 4)
    column = pa.array(images.ravel())
    for length in (4, 3, 2):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    held = arrays(features=images)
    assert take(table({**held, "features": column}, row_group_size=7)).digest == take(npz(held)).digest
    ragged = pa.array([[[1.0], [1.0, 2.0]]] * 2, pa.list_(pa.list_(pa.float32()), 2))
    assert "lists of equal length" in _refusal(table({"features": ragged, "label": [0, 1]})).detail


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 26, reason="older ones read no such lists")
def test_images_with_missing_rows_are_refused() -> None:
    holey = pa.array([[[1.0], None]] * 2, pa.list_(pa.list_(pa.float32(), 1), 2))
    assert "has 2 nulls" in _refusal(table({"features": holey, "label": [0, 1]})).detail


@pytest.mark.parametrize(
    ("columns", "name", "right"),
    [
        (
            {"a": [1.0, 2.0]},
            "label",
            "there is no column 'label'; name the label by --column label=COLUMN: a",
        ),
        ({"label": [0, 1]}, "features", "missing"),
        (
            {"a": [1.0, None], "label": [0, 1]},
            "a",
            "1 empty cell (nothing, NA or null), in row 2 of the data: remove such samples or fill in",
        ),
        ({"a": ["x", "y"], "label": [0, 1]}, "a", "contains string; it must contain numbers"),
        ({"a": ["x", "y"], "label": [0, 1]}, "a", "encode it, e.g. by pandas.get_dummies, or leave it out"),
        (
            {"a": [1.0, 2.0], "label": [0, 1], "split": ["train", "test"]},
            "split",
            "a column 'test' of booleans, true for the samples to test with, e.g. frame['test'] = frame['spl",
        ),
        (
            {"a": [1.0, 2.0], "label": [0, 1], "test": ["train", "test"]},
            "test",
            "must contain booleans: true for the samples to test with, e.g. frame['test'] = frame['split']",
        ),
        ({"pixels": [[1.0], [2.0]], "label": [0, 1]}, "pixels", "by --column features=pixels"),
        ({"a": [1.0, 2.0], "label": ["x", " "]}, "label", "is empty in row 2 of the data"),
        ({"a": [1.0, 2.0], "label": [0, 1], "client": [1.5, 2.5]}, "client", "integers or text"),
        (
            {"a": [1.0, 2.0], "label": [0, 1], "client": ["a", None]},
            "client",
            "1 empty cell (nothing, NA or null), in row 2 of the data",
        ),
        (
            {"a": [1.0, 2.0], "label": [0, 1], "client": ["a", "b" * 201]},
            "client",
            "an id of 201 characters; the limit is 200",
        ),
        ({"a": [1.0, 2.0], "label": [0, 1], "test": [0, 1]}, "test", "booleans"),
        ({"features": [[1.0], [2.0]], "label": [0, 1]}, "features", "lists of equal length (pyarrow.list_("),
        (
            {"features": pa.array([[1.0], None], pa.list_(pa.float32(), 1)), "label": [0, 1]},
            "features",
            "nulls; all numbers of a sample are required",
        ),
        (
            {"features": pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1)), "label": [0, 1], "b": [1, 2]},
            "b",
            "unknown column",
        ),
        ({f"x{index}": [1.0] for index in range(101)} | {"label": [0]}, "features", "101 numbers per sample"),
        ({"a": np.zeros(1_001), "label": np.zeros(1_001, int)}, "features", "1001 samples"),
    ],
)
def test_a_column_at_fault_is_named_with_what_would_be_right(
    columns: dict[str, Any], name: str, right: str
) -> None:
    refused = _refusal(table(columns))
    assert (refused.name, right in refused.detail) == (name, True), refused


def test_file_that_would_unpack_to_more_than_the_limit_is_refused_by_its_description() -> None:
    packed = table({"a": np.zeros(900), "label": np.zeros(900, int)})
    assert "bytes; the limit is 10000" in _refusal(packed, UploadLimits(10_000, 1_000, 10)).detail
    noise = np.random.default_rng(0).normal(size=500)
    ids = [str(number) * 10 for number in range(500)]
    assert (
        "unpacks to"
        in _refusal(
            table({"a": noise, "label": np.arange(500) % 2, "client": ids}), UploadLimits(20_000, 1_000, 10)
        ).detail
    )


def test_a_long_id_that_recurs_is_held_once() -> None:
    columns = {"a": np.zeros(900), "label": np.arange(900) % 2, "client": ["b" * 100_000] * 900}
    assert "an id of 100000 characters" in _refusal(table(columns)).detail


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([1.0]), pa.array([0])], ["a", "a", "label"])
    file = pa.BufferOutputStream()
    pa.parquet.write_table(twice, file)
    assert "twice" in _refusal(file.getvalue().to_pybytes()).detail


def test_a_name_that_stands_a_hundred_thousand_times_is_found_at_once() -> None:
    with pytest.raises(UploadError, match="x: appears twice"):
        _feature_columns(pa.schema([pa.field("x", pa.float32())] * 100_000))


def test_a_file_cut_short_or_damaged_is_refused() -> None:
    whole = parquet(arrays())
    assert "it may be truncated" in _refusal(whole[:-1]).detail
    assert "it may be truncated" in _refusal(whole[:4]).detail
    assert (
        "its footer has"
        in _refusal(whole[:4] + bytes(17 << 20) + (17 << 20).to_bytes(4, "little") + b"PAR1").detail
    )
    garbled = bytearray(whole)
    garbled[-200:-8] = bytes(192)
    assert "not a readable Parquet file" in _refusal(bytes(garbled)).detail


@pytest.mark.nightly
def test_a_file_damaged_anywhere_is_refused_or_read_and_at_worst_ends_its_reader() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.platform.uploads.damage"], capture_output=True, text=True, check=True
    )
    ends = set(done.stdout.split("\n")[:-1])
    assert "refused" in ends
    assert ends <= {"read", "refused", "aborted"}
