"""The form in which data are kept: known by what they hold, and found out when damaged."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcore.data.federated import UndividedDataset, divide, merge_splits
from fedcore.data.uploaded import Local, local_dataset_storage
from fedcore.data.user_datasets import UserSamples, load
from fedcore.errors import DataUnavailableError
from tests.platform.uploads.files import arrays, npz, parquet, take


def _saved(samples: UserSamples) -> bytes:
    file = io.BytesIO()
    samples.save(file)
    return file.getvalue()


@pytest.mark.parametrize("left_out", [(), ("client",), ("test",), ("client", "test")])
def test_saved_data_set_is_loaded(left_out: tuple[str, ...]) -> None:
    samples = take(npz(arrays(**dict.fromkeys(left_out))))
    loaded = load(io.BytesIO(_saved(samples)), samples.content)
    assert loaded.content == samples.content
    for name, array in samples.arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array, strict=True)


def test_any_change_changes_the_digest() -> None:
    held = arrays()
    changes = {
        "features": held["features"] + np.eye(60, 4) * 1e-12,
        "label": held["label"][::-1],
        "client": held["client"][::-1],
        "test": ~held["test"],
    }
    digests = {take(npz(held | {name: array})).digest for name, array in changes.items()}
    assert len(digests | {take(npz(held)).digest, take(npz(arrays(client=None))).digest}) == 6


def test_the_width_of_text_does_not_change_the_digest() -> None:
    held = arrays()
    assert take(npz({**held, "client": held["client"].astype("<U99")})).digest == take(npz(held)).digest


def test_damaged_and_exchanged_files_are_found_out() -> None:
    samples, other = take(npz(arrays())), take(npz(arrays(test=None)))
    whole = _saved(samples)
    draw = np.random.default_rng(1)
    for place in draw.integers(len(whole), size=100):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(draw.integers(8))
        try:
            assert load(io.BytesIO(bytes(broken)), samples.content).digest == samples.digest
        except DataUnavailableError as error:
            assert samples.digest in str(error)  # noqa: PT017 - either will do
    with pytest.raises(DataUnavailableError, match="is damaged: its content has digest"):
        load(io.BytesIO(_saved(other)), samples.content)
    with pytest.raises(DataUnavailableError, match="upload it again"):
        load(io.BytesIO(whole[:100]), samples.content)


def test_a_block_that_was_edited_is_no_damage_and_the_field_is_named() -> None:
    samples = take(npz(arrays()))
    edited = samples.content.model_copy(update={"classes": samples.content.classes + 1})
    with pytest.raises(DataUnavailableError, match=r" has classes \d+, not \d+ as the specification says"):
        load(io.BytesIO(_saved(samples)), edited)


@settings(max_examples=50)
@given(st.data())
def test_every_sample_of_an_upload_is_trained_on_by_one_client_or_tested_on(
    data: st.DataObject,
) -> None:
    n, d = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 4))
    kind = data.draw(st.sampled_from(["uint8", "int16", "int64", "float16", "float32", "float64", "bool"]))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    client = draw.integers(-2, 3, n)
    test = draw.random(n) < 0.5
    test[[np.flatnonzero(client == one)[0] for one in np.unique(client)]] = False
    test[:2] = False  # so that both classes are trained on
    held = {
        "features": draw.integers(0, 2, (n, d)).astype(kind),
        "label": np.arange(n) % 2,
        "client": client,
        "test": test,
    }
    samples = take(npz(held))
    assert samples.digest == take(parquet(held)).digest == take(parquet(held, lists=True)).digest
    assert samples.sizes is not None
    assert samples.sizes.min() >= 1
    assert samples.sizes.sum() + test.sum() == n
    assert samples.sizes.tolist() == [int(((client == one) & ~test).sum()) for one in np.unique(client)]
    np.testing.assert_array_equal(samples.features, held["features"])


LARGE = 17 << 20


def kept(folder: Path, dtype: str, tests: NDArray[np.bool_]) -> tuple[Path, UserSamples]:
    """A file of more than `MAPPED_BYTES`, as it is stored."""
    draw = np.random.default_rng(0)
    features = draw.integers(0, 256, (len(tests), LARGE // len(tests) // np.dtype(dtype).itemsize)).astype(
        dtype
    )
    samples = UserSamples(features, np.arange(len(tests)) % 2, None, tests)
    path = folder / f"{dtype}.npz"
    with path.open("wb") as file:
        samples.save(file)
    return path, samples


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_large_features_are_mapped_and_equal_those_that_were_stored(dtype: str, tmp_path: Path) -> None:
    path, samples = kept(tmp_path, dtype, np.arange(100) >= 80)
    with path.open("rb") as file:
        read = load(file, samples.content)
    assert isinstance(read.features, np.memmap)
    assert read.features.ctypes.data % 64 == 0
    assert np.array_equal(read.features, samples.features)
    with np.load(path, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["features"], samples.features)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_files_that_cannot_be_mapped_are_read(write: Any, tmp_path: Path) -> None:
    _, samples = kept(tmp_path, "float32", np.zeros(50, bool))
    path = tmp_path / "plain.npz"
    write(path, **samples.arrays)
    with path.open("rb") as file:
        assert np.array_equal(load(file, samples.content).features, samples.features)
    with io.BytesIO(path.read_bytes()) as stream:
        assert not isinstance(load(stream, samples.content).features, np.memmap)


def opened(folder: Path) -> tuple[Path, UserSamples, UndividedDataset]:
    """A mapped file with 80 training and 20 test samples, what it holds, and the data set read from it."""
    path, samples = kept(folder, "float32", np.arange(100) >= 80)
    target = local_dataset_storage(folder).path(samples.digest)
    target.parent.mkdir()
    path.rename(target)
    data = Local(kind="local", content=samples.content).load(folder)
    assert isinstance(data, UndividedDataset)
    return target, samples, data


def test_training_on_a_mapped_file_copies_no_features(tmp_path: Path) -> None:
    target, samples, data = opened(tmp_path)
    run = data.numbers().to("cpu", torch.float32)
    assert run.train.features.data_ptr() == data.train.features.data_ptr()
    assert merge_splits(run).train.features.data_ptr() == data.train.features.data_ptr()
    assert np.array_equal(run.test.features.numpy(), samples.features[80:])
    read = resident_bytes(target)
    run.release_pages()
    assert read > LARGE // 2
    assert resident_bytes(target) < read // 10
    assert np.array_equal(run.test.features.numpy(), samples.features[80:])


def test_mini_batches_leave_no_pages_of_the_file_mapped(tmp_path: Path) -> None:
    target, samples, data = opened(tmp_path)
    data.release_pages()
    rows = torch.arange(80)
    batch = divide(data, [rows.numpy()]).seen(rows, torch.zeros_like(rows))
    assert np.array_equal(batch.features.numpy(), samples.features[:80])
    assert resident_bytes(target) < LARGE // 20


def resident_bytes(path: Path) -> int:
    """Pages of a mapped file that this process has read."""
    maps = psutil.Process().memory_maps(grouped=False)
    return sum(int(one.rss) for one in maps if one.path == str(path))


def test_a_mapped_file_that_was_damaged_is_refused(tmp_path: Path) -> None:
    path, samples = kept(tmp_path, "uint8", np.zeros(50, bool))
    content = bytearray(path.read_bytes())
    content[LARGE // 2] ^= 1
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(DataUnavailableError, match="damaged"):
        load(file, samples.content)
