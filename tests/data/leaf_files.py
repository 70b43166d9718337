"""Small files of LEAF's data sets in their true JSON formats."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data.leaf import ALPHABET

Users = dict[str, tuple[list[Any], list[Any]]]


def write(folder: Path, name: str, users: Users) -> None:
    """One file, as LEAF's `split_data.py` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / name).write_text(json.dumps(document))


def images(labels: list[int], seed: int) -> tuple[list[list[float]], list[int]]:
    """Each image as a list of 784 numbers from 0 to 1."""
    return (np.random.default_rng(seed).integers(0, 256, (len(labels), 784)) / 255).tolist(), labels


WRITERS: tuple[dict[str, list[int]], dict[str, list[int]]] = (
    {"f0000_14": [36, 3, 45, 46], "f0001_41": [61, 36, 37], "f0002_00": [5]},
    {"f0000_14": [45], "f0001_41": [36, 0], "f0003_09": [38]},
)
"""The labels of each writer's training and test images; the last of each part is in no other."""


def write_femnist(root: Path) -> None:
    """LEAF spreads writers over files."""
    train, test = (
        {user: images(labels, len(user) + sum(labels)) for user, labels in part.items()} for part in WRITERS
    )
    first, *others = train
    write(root / "femnist" / "train", "all_data_0_niid_0_keep_0_train_9.json", {first: train[first]})
    write(
        root / "femnist" / "train",
        "all_data_1_niid_0_keep_0_train_9.json",
        {user: train[user] for user in others},
    )
    write(root / "femnist" / "test", "all_data_0_niid_0_keep_0_test_9.json", test)


def windows(text: str) -> tuple[list[str], list[str]]:
    return [text[start : start + 80] for start in range(len(text) - 80)], list(text[80:])


def write_shakespeare(root: Path, *, letters: str = ALPHABET) -> None:
    """Two roles, one of few words; in `data`, where a copy of LEAF has them."""
    text = (letters * 3)[:200]
    (long_x, long_y), (short_x, short_y) = windows(text), windows(text[:82])
    folder = root / "shakespeare" / "data"
    write(
        folder / "train",
        "train.json",
        {"ROMEO": (long_x[:90], long_y[:90]), "PAGE": (short_x[:1], short_y[:1])},
    )
    write(
        folder / "test",
        "test.json",
        {"ROMEO": (long_x[90:], long_y[90:]), "PAGE": (short_x[1:], short_y[1:])},
    )


def tweet(user: str, text: str) -> list[str]:
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]


def write_sent140(root: Path) -> None:
    """Two accounts, and the vectors of three words."""
    ann = [tweet("ann", "what a day, what luck!"), tweet("ann", "no luck")], [1, 0]
    bob = [tweet("bob", " ".join(["day"] * 30))], ["4"]
    write(root / "sent140" / "train", "all_data_train_9.json", {"ann": ann, "bob": bob})
    write(
        root / "sent140" / "test", "all_data_test_9.json", {"ann": ([tweet("ann", "luck unheardof")], ["0"])}
    )
    vectors = {"what": 0.5, "luck": -1.25, "day": 2.0, "unused": 9.0}
    lines = [f"{word} " + " ".join([f"{value:.5f}"] * 300) for word, value in vectors.items()]
    (root / "glove.6B.300d.txt").write_text("\n".join(lines) + "\n")
