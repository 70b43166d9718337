"""The form in which data are kept: known by what they hold, and found out when damaged."""

import io

import numpy as np
import pytest

from fedcore.errors import DataUnavailableError
from fedcore.uploads.canonical import Samples, load
from tests.uploads.files import arrays, npz, take


def _saved(samples: Samples) -> bytes:
    file = io.BytesIO()
    samples.save(file)
    return file.getvalue()


@pytest.mark.parametrize("left_out", [(), ("client",), ("test",), ("client", "test")])
def test_what_was_saved_is_loaded(left_out: tuple[str, ...]) -> None:
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
