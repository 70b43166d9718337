"""Validation of the samples of an upload."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import UploadError
from tests.platform.uploads.files import arrays, npz, take


def _refusal(**changes: Any) -> UploadError:
    with pytest.raises(UploadError) as refused:
        take(npz(arrays(**changes)))
    return refused.value


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_a_number_that_is_not_finite_is_refused_with_its_place(value: float, kind: str) -> None:
    features = np.zeros((60, 2, 2), kind)
    features[41, 1, 0] = value
    refused = _refusal(features=features)
    assert (refused.name, f"is {value} at [41, 1, 0]" in refused.detail) == ("features", True), refused
    assert "at [7]" in _refusal(label=np.where(np.arange(60) == 7, value, 0.0)).detail


@pytest.mark.parametrize(
    ("label", "right"),
    [
        (np.arange(60) % 3 + 1, "3 classes numbered 1, 2, 3 up to 3; they must be 0..2 without gaps"),
        (np.arange(60) % 3 * 2, "0, 2, 4 up to 4"),
        (np.arange(60) % 2 * -1, "-1, 0 up to 0"),
        (np.arange(60) % 10 + 5, "5, 6, 7, ... up to 14"),
        (np.zeros(60, int), "a single class; two or more classes are required"),
        (np.full(60, 2**63, np.uint64), "1 classes numbered 9223372036854775808"),
    ],
)
def test_classes_are_numbered_from_zero_without_a_gap(label: Any, right: str) -> None:
    refused = _refusal(label=label)
    assert (refused.name, right in refused.detail) == ("label", True), refused


def test_a_class_may_be_in_the_test_samples_only() -> None:
    samples = take(npz(arrays(label=np.where(np.arange(60) == 4, 3, np.arange(60) % 3))))
    assert samples.content.classes == 4


def test_two_classes_may_be_booleans_and_real_labels_are_for_regression() -> None:
    assert take(npz(arrays(label=np.arange(60) % 2 == 0))).content.classes == 2
    real = take(npz(arrays(label=np.linspace(-1, 1, 60, dtype=np.float32))))
    assert (real.content.classes, real.label.dtype.str) == (0, "<f8")


def test_a_client_of_one_sample_is_one_and_a_client_of_none_is_refused() -> None:
    alone = take(npz(arrays(client=np.minimum(np.arange(60), 1))))
    assert alone.sizes is not None
    assert alone.sizes.tolist() == [1, 47]
    assert alone.client_sizes == (1, 24.0, 24.0, 47)
    refused = _refusal(client=np.where(np.arange(60) == 4, "idle", "busy"))
    assert (refused.name, refused.detail) == (
        "test",
        "leaves 1 clients without training samples ('idle'); each needs at least one",
    )


def test_all_samples_for_testing_are_refused() -> None:
    assert "marks all 60 samples" in _refusal(test=np.ones(60, bool)).detail


def test_ids_are_short_text_or_small_integers() -> None:
    assert "empty in row 3 of the data" in _refusal(client=np.where(np.arange(60) == 2, "", "a")).detail
    assert "201 characters" in _refusal(client=np.full(60, "a" * 201)).detail
    assert "below 2^63" in _refusal(client=np.full(60, 2**63, np.uint64)).detail


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("uint8", "uint8"),
        ("bool", "uint8"),
        ("int16", "float32"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("int32", "float64"),
        ("uint64", "float64"),
        ("float64", "float64"),
    ],
)
def test_features_keep_their_values(given: str, kept: str) -> None:
    features = (np.arange(240).reshape(60, 4) % 200).astype(given)
    samples = take(npz(arrays(features=features)))
    assert samples.features.dtype == kept
    np.testing.assert_array_equal(samples.features, features)


@given(
    st.lists(
        st.one_of(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)),
        min_size=1,
        max_size=30,
    )
)
def test_clients_are_numbered_by_the_order_of_their_ids(ids: list[str]) -> None:
    label = np.arange(len(ids) + 1) % 2
    held = {"features": np.zeros((len(label), 1)), "label": label, "client": np.array([*ids, ids[0]])}
    samples = take(npz(held))
    assert samples.clients is not None
    assert samples.clients.names.tolist() == sorted(set(ids))
    assert samples.clients.names[samples.clients.codes].tolist() == [*ids, ids[0]]
    assert samples.sizes is not None
    assert samples.sizes.sum() == len(label)
