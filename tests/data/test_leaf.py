"""LEAF's data sets: read from generated files in their true formats, and from the real text where
this machine has it.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data.federated import UndividedDataset
from fedcore.data.leaf import ALPHABET, Femnist, Sent140, Shakespeare, from_text
from fedcore.errors import DataUnavailableError
from tests.data import leaf_files

FEMNIST, A_TO_J = Femnist(kind="femnist"), Femnist(kind="femnist", classes="a-j")
SENT140 = Sent140(kind="sent140")
SHAKESPEARE, TEXT = Shakespeare(kind="shakespeare"), Shakespeare(kind="shakespeare", form="text")


def keys(dataset: UndividedDataset) -> tuple[list[int], list[int]]:
    assert dataset.keys is not None
    return dataset.keys.train.tolist(), dataset.keys.test.tolist()


def test_femnist_holds_every_writers_images_in_the_order_of_the_files(tmp_path: Path) -> None:
    leaf_files.write_femnist(tmp_path)
    data = FEMNIST.load(tmp_path)
    assert data.train.labels.tolist() == [36, 3, 45, 46, 61, 36, 37, 5]
    assert data.test.labels.tolist() == [45, 36, 0, 38]
    assert keys(data) == ([0, 0, 0, 0, 1, 1, 1, 2], [0, 1, 1, -1])
    x, _ = leaf_files.images([61, 36, 37], len("f0001_41") + 61 + 36 + 37)
    np.testing.assert_allclose(data.train.features[4:7].flatten(1), x, atol=1e-7)
    assert data.train.features.shape == (8, 1, 28, 28)
    assert data.source == "FEMNIST (LEAF)"


def test_a_to_j_are_the_ten_letters_of_fedprox_and_writers_of_none_are_no_clients(tmp_path: Path) -> None:
    leaf_files.write_femnist(tmp_path)
    data = A_TO_J.load(tmp_path)
    assert data.train.labels.tolist() == [0, 9, 0, 1]
    assert data.test.labels.tolist() == [9, 0, 2]
    assert keys(data) == ([0, 0, 1, 1], [0, 1, -1])


def test_shakespeare_is_read_as_characters_of_leafs_alphabet(tmp_path: Path) -> None:
    leaf_files.write_shakespeare(tmp_path)
    data = SHAKESPEARE.load(tmp_path)
    assert data.train.features[0].tolist() == [*range(80)]
    assert data.train.features[1].tolist() == [*range(1, 80), 0]
    assert data.train.labels[:3].tolist() == [0, 1, 2]
    assert keys(data) == ([0] * 90 + [1], [0] * 30 + [1])
    assert data.train.features.dtype == torch.uint8
    assert data.source == "Shakespeare (LEAF); test windows overlap training windows"


def test_windows_of_other_users_do_not_overlap(tmp_path: Path) -> None:
    text = "".join(np.random.default_rng(0).choice(list(ALPHABET), 600))
    leaf_files.write(tmp_path / "shakespeare" / "train", "a.json", {"ROMEO": leaf_files.windows(text[:300])})
    leaf_files.write(tmp_path / "shakespeare" / "test", "a.json", {"PAGE": leaf_files.windows(text[300:])})
    assert SHAKESPEARE.load(tmp_path).source == "Shakespeare (LEAF)"


def test_foreign_characters_are_read_as_spaces(tmp_path: Path) -> None:
    leaf_files.write_shakespeare(tmp_path, letters="$é~" + ALPHABET[3:])
    assert SHAKESPEARE.load(tmp_path).train.features[0, :4].tolist() == [ALPHABET.index(" ")] * 3 + [3]


def test_the_alphabet_is_leafs() -> None:
    assert (len(ALPHABET), len(set(ALPHABET)), ALPHABET[:3], ALPHABET[-2:]) == (80, 80, "\n !", "z}")


def decoded(windows: torch.Tensor) -> list[str]:
    return ["".join(ALPHABET[code] for code in row) for row in windows.tolist()]


def test_a_role_is_made_of_all_its_speeches_in_order() -> None:
    text = f"First Lord:\n{'a' * 70}\n\nPAGE:\nAy.\n\nFirst Lord:\n{'b' * 70}\nAnd: c.\n"
    data = from_text(text * 3 + "\n" + text)
    role = f"{'a' * 70}\n{'b' * 70}\nAnd: c.\n"
    assert decoded(data.train.features[:2]) == [role[:80], role[1:81]]
    assert decoded(data.train.labels[:2, None]) == [role[80], role[81]]
    assert data.source == "Shakespeare (plain text)"


def test_as_large_a_share_of_a_long_text_is_for_testing_as_the_shape_says() -> None:
    data, expected = from_text("PAGE:\n" + "a" * 40_000), TEXT.shape()
    share = len(data.test) / len(data.train)
    assert share == pytest.approx(expected.test_samples / expected.train_samples, rel=0.02)


@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=3))
@settings(max_examples=30)
def test_no_test_window_of_a_role_holds_what_training_foretells(lengths: list[int]) -> None:
    """Every character of a role is its own, so that a window tells where it is from."""
    draw = np.random.default_rng(0)
    roles = ["".join(draw.choice(list("abcdefghijklmnopqrstuvwxyz"), length)) for length in [600, *lengths]]
    data = from_text("\n\n".join(f"ROLE {number}:\n{text}" for number, text in enumerate(roles)))
    assert data.keys is not None
    train, test = decoded(data.train.features), decoded(data.test.features)
    for number, role in enumerate([role for role in roles if len(role) > 80]):
        role_text, count = role + "\n", len(role) + 1 - 80
        mine = [window for window, key in zip(train, data.keys.train, strict=True) if key == number]
        held_out = [window for window, key in zip(test, data.keys.test, strict=True) if key == number]
        cut = int(0.8 * count)
        assert mine == [role_text[start : start + 80] for start in range(cut)]
        assert held_out == [role_text[start : start + 80] for start in range(cut + 80, count)]


def test_sent140_is_read_as_words_with_their_glove_vectors(tmp_path: Path) -> None:
    leaf_files.write_sent140(tmp_path)
    data = SENT140.load(tmp_path)
    assert data.vectors is not None
    spoken = data.vectors[data.train.features.long()]
    what, luck, day, none = 0.5, -1.25, 2.0, 0.0
    assert spoken[0, :9, 0].tolist() == [what, none, day, none, what, luck, none, none, none]
    assert spoken[1, :3, 0].tolist() == [none, luck, none]
    assert spoken[2, :, 0].tolist() == [day] * 25
    assert spoken.shape == (3, 25, 300)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([1, 0, 1], [0])
    assert keys(data) == ([0, 0, 1], [0])


def test_words_without_a_vector_are_one_symbol(tmp_path: Path) -> None:
    leaf_files.write_sent140(tmp_path)
    data = SENT140.load(tmp_path)
    assert set(data.test.features[0, 1:].tolist()) == {0}


def test_missing_files_are_reported_with_where_to_put_them(tmp_path: Path) -> None:
    readers: dict[str, Callable[[], UndividedDataset]] = {
        "femnist": lambda: FEMNIST.load(tmp_path),
        "shakespeare": lambda: SHAKESPEARE.load(tmp_path),
        "sent140": lambda: SENT140.load(tmp_path),
    }
    for kind, read in readers.items():
        with pytest.raises(DataUnavailableError, match="FEDQ_DATA_DIR") as refusal:
            read()
        assert f"{tmp_path}/{kind}/train" in str(refusal.value)
    with pytest.raises(DataUnavailableError, match=r"tinyshakespeare\.txt.*FEDQ_DATA_DIR"):
        TEXT.load(tmp_path)


def test_missing_vectors_are_reported_with_where_to_put_them(tmp_path: Path) -> None:
    leaf_files.write_sent140(tmp_path)
    (tmp_path / "glove.6B.300d.txt").unlink()
    with pytest.raises(DataUnavailableError, match=r"glove\.6B\.300d\.txt there"):
        SENT140.load(tmp_path)


BROKEN = {
    "cut short": '{"users": ["a"], "user_data"',
    "of another form": "[1, 2]",
    "without data": json.dumps({"users": ["a"], "user_data": {}}),
    "with too few labels": json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.0] * 784], "y": []}}}),
    "with images of another size": json.dumps(
        {"users": ["a"], "user_data": {"a": {"x": [[0.0] * 783], "y": [1]}}}
    ),
    "of nobody": json.dumps({"users": [], "user_data": {}}),
    "of one user twice": json.dumps(
        {"users": ["a", "a"], "user_data": {"a": {"x": [[0.0] * 784], "y": [1]}}}
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_reported_like_a_missing_one(case: str, tmp_path: Path) -> None:
    leaf_files.write_femnist(tmp_path)
    for file in (tmp_path / "femnist" / "train").iterdir():
        file.write_text(
            BROKEN[case] if "all_data_0" in file.name else json.dumps({"users": [], "user_data": {}})
        )
    with pytest.raises(DataUnavailableError, match=r"FEMNIST .* cannot be read"):
        FEMNIST.load(tmp_path)


def broken_user(x: list[Any], y: list[Any]) -> dict[str, Any]:
    return {"users": ["a", "b"], "user_data": {"a": {"x": [[0.0] * 784], "y": [1]}, "b": {"x": x, "y": y}}}


@pytest.mark.parametrize(
    ("users", "told"),
    [
        (
            broken_user([[0.0] * 784, [0.0] * 3], [1, 1]),
            "part_1.json, user b: image 1 has 3 numbers instead of",
        ),
        (broken_user([[0.0] * 784], [7.6]), "part_1.json, user b: label 0 is 7.6; labels must be whole"),
        (broken_user([[0.0] * 784], ["seven"]), "part_1.json, user b: could not convert"),
        (broken_user([[0.0] * 784], [1, 2]), "part_1.json, user b: 1 samples but 2 labels"),
        ({"users": ["a"], "user_data": {"a": {"x": []}}}, "part_1.json, user a: `y` is missing"),
        ({"users": ["a"], "user_data": {}}, "part_1.json: `user_data` lacks 'a'"),
        ({"users": ["a"]}, "part_1.json: `user_data` is missing"),
        ([1, 2], "part_1.json: "),
    ],
)
def test_unreadable_entries_of_leaf_are_named_by_file_and_user(users: Any, told: str, tmp_path: Path) -> None:
    leaf_files.write_femnist(tmp_path)
    (tmp_path / "femnist" / "train" / "part_1.json").write_text(json.dumps(users))
    with pytest.raises(DataUnavailableError, match=re.escape(told)):
        FEMNIST.load(tmp_path)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    leaf_files.write_femnist(tmp_path)
    (tmp_path / "femnist" / "test" / "part_1.json").write_text('{"users": ["a"], "user_data"')
    with pytest.raises(DataUnavailableError, match=r"test/part_1\.json: Expecting ':' delimiter"):
        FEMNIST.load(tmp_path)


def test_whole_labels_may_be_written_as_real_numbers(tmp_path: Path) -> None:
    leaf_files.write_femnist(tmp_path)
    leaf_files.write(tmp_path / "femnist" / "train", "part_1.json", {"fedprox": ([[0.0] * 784], [7.0])})
    assert FEMNIST.load(tmp_path).train.labels[-1] == 7


@pytest.mark.parametrize("label", [4, "4", 1, 0, "0"])
def test_both_ways_to_label_a_tweet_are_read(label: Any, tmp_path: Path) -> None:
    leaf_files.write_sent140(tmp_path)
    leaf_files.write(
        tmp_path / "sent140" / "train", "b.json", {"eve": ([leaf_files.tweet("eve", "luck")], [label])}
    )
    assert SENT140.load(tmp_path).train.labels[-1] == (label not in (0, "0"))


@pytest.mark.parametrize("label", [2, "2"])
def test_a_neutral_tweet_is_refused_with_its_file_and_account(label: Any, tmp_path: Path) -> None:
    leaf_files.write_sent140(tmp_path)
    leaf_files.write(
        tmp_path / "sent140" / "test", "b.json", {"eve": ([leaf_files.tweet("eve", "luck")], [label])}
    )
    told = r"test/b\.json, user eve: a tweet has the label '?2'?; it must be 0 \(negative\), or 1 or 4"
    with pytest.raises(DataUnavailableError, match=told):
        SENT140.load(tmp_path)


def test_windows_of_another_length_are_refused(tmp_path: Path) -> None:
    leaf_files.write(tmp_path / "shakespeare" / "train", "a.json", {"A": (["too short"], ["e"])})
    with pytest.raises(DataUnavailableError, match="80 characters"):
        SHAKESPEARE.load(tmp_path)
