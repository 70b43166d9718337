"""Stack Overflow, read from generated files in the layouts of TFF and LEAF."""

from pathlib import Path

import pytest

from fedcore.data.federated import validate_samples
from fedcore.data.stackoverflow import StackOverflow
from fedcore.errors import DataUnavailableError
from tests.data import folder_files, leaf_files
from tests.data.test_leaf import keys

WRITERS = {
    "tff": folder_files.write_stackoverflow_of_tff,
    "leaf": folder_files.write_stackoverflow_of_leaf,
}
BEGIN, OTHER, END = 6, 5, 7
"""With a vocabulary of four words: how, a, sort, use."""


@pytest.mark.parametrize("form", WRITERS)
def test_words_of_stack_overflow_are_foretold_from_those_before_them(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path)
    spec = StackOverflow.model_validate({"kind": "stackoverflow", "form": form, "vocabulary": 4})
    data = spec.load(tmp_path).numbers()
    sentence = [1, OTHER, OTHER, 3, 2, OTHER, END]
    assert data.train.labels.tolist() == [*sentence, 4, OTHER, END, OTHER, END]
    assert data.train.features[3].tolist() == [0] * 16 + [BEGIN, 1, OTHER, OTHER]
    assert data.train.features[7].tolist() == [0] * 19 + [BEGIN]
    assert data.test.labels.tolist() == [3, OTHER, END]
    assert keys(data) == ([0] * 10 + [1] * 2, [0] * 3)
    validate_samples(data, spec.shape())


@pytest.mark.parametrize("form", WRITERS)
def test_users_and_sentences_of_stack_overflow_may_be_limited(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path)
    spec = StackOverflow.model_validate({"kind": "stackoverflow", "form": form, "users": 1, "sentences": 1})
    data = spec.load(tmp_path).numbers()
    assert (len(data.train), len(data.test)) == (7, 3)


@pytest.mark.parametrize(("words", "end"), [(19, [END]), (20, []), (25, [])])
def test_only_a_sentence_of_fewer_than_twenty_words_ends(words: int, end: list[int], tmp_path: Path) -> None:
    """As in TFF's `build_to_ids_fn`: the end symbol is appended if fewer are left after cutting."""
    folder_files.write_word_counts(tmp_path)
    held = {"1": ([" ".join(["a"] * words)], [""])}
    for part in ("train", "test"):
        leaf_files.write(tmp_path / "stackoverflow" / part, "all.json", held)
    data = StackOverflow(kind="stackoverflow", form="leaf", vocabulary=4).load(tmp_path).numbers()
    assert data.train.labels.tolist() == [2] * min(words, 20) + end
    assert data.train.features[-1].tolist() == [BEGIN] + [2] * 19


def test_a_user_of_stack_overflow_without_sentences_in_the_file_is_named(tmp_path: Path) -> None:
    folder_files.write_stackoverflow_of_leaf(tmp_path)
    path = tmp_path / "stackoverflow" / "train" / "all.json"
    path.write_text(path.read_text().replace('"x"', '"z"', 1))
    with pytest.raises(DataUnavailableError, match=r"all\.json, user 00000001: `x` is missing"):
        StackOverflow(kind="stackoverflow", form="leaf").load(tmp_path)
