"""Small data sets of every family, in their published layouts, from which classes can be learnt."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.leaf import ALPHABET
from fedcore.platform.uploads.local import keep
from tests.builders.specifications import Document
from tests.data import image_files, leaf_files

FEW = 30
"""Training samples of the smaller of two sizes."""


def grey(root: Path, patch: pytest.MonkeyPatch, count: int) -> Document:
    """Bytes of one channel: MNIST's IDX files."""
    image_files.write_mnist(root, train=count, test=60)
    return {"kind": "mnist"}


def colour(root: Path, patch: pytest.MonkeyPatch, count: int) -> Document:
    """Bytes of three channels: CIFAR-10's pickled batches."""
    image_files.write_cifar10(root, patch, train=count, test=60)
    return {"kind": "cifar10"}


def floats(root: Path, patch: pytest.MonkeyPatch, count: int) -> Document:
    """Real numbers of three channels: a user's NPZ file."""
    pixels = image_files.colour(count + 60, 5).transpose(0, 3, 1, 2) / 255 - 0.5
    test = np.arange(count + 60) >= count
    np.savez(
        root / "own.npz",
        features=pixels.astype(np.float32),
        label=image_files.labels(count + 60, 10).astype(np.int64),
        test=test,
    )
    return keep(root / "own.npz", root)


def table(root: Path, patch: pytest.MonkeyPatch, count: int) -> Document:
    """Columns of numbers: a user's CSV file, three classes around three centres."""
    draw = np.random.default_rng(3)
    lines = ["age,income,score,label,test"]
    for row in range(count + 60):
        label = row % 3
        values = draw.normal(0, 0.5, 3) + 2 * np.eye(3)[label]
        lines.append(",".join([*(f"{value:.6f}" for value in values), str(label), str(row >= count).lower()]))
    (root / "own.csv").write_text("\n".join(lines) + "\n")
    return keep(root / "own.csv", root)


def characters(root: Path, patch: pytest.MonkeyPatch, count: int) -> Document:
    """Windows of 80 characters and the one that follows: LEAF's Shakespeare, of two roles who recite the
    first letters of the alphabet.
    """
    folder, letters = root / "shakespeare" / "data", ALPHABET[-6:]
    for part, length in (("train", count // 2), ("test", 30)):
        users = {}
        for shift, role in enumerate(("ROMEO", "JULIET")):
            text = (letters * 30)[shift : shift + 80 + length]
            users[role] = leaf_files.windows(text)
        leaf_files.write(folder / part, f"{part}.json", users)
    return {"kind": "shakespeare"}


def text(root: Path, patch: pytest.MonkeyPatch, count: int) -> Document:
    """A plain text, in which each character follows from the one before."""
    (root / "play.txt").write_text((ALPHABET[-6:] * (count * 2))[: count * 10])
    return {"kind": "text", "file": "play.txt", "length": 8}


def words(root: Path, patch: pytest.MonkeyPatch, count: int) -> Document:
    """Tweets of LEAF's Sent140, glad or sad, and GloVe's vectors of their words."""
    draw = np.random.default_rng(4)
    glad, sad, others = ("good", "great", "luck"), ("bad", "awful", "sorry"), ("day", "what", "the")
    for part, number in (("train", count), ("test", 60)):
        users: leaf_files.Users = {}
        for row in range(number):
            said = [draw.choice(others), draw.choice(glad if row % 2 else sad), draw.choice(others)]
            x, y = users.setdefault(f"user{row % 3}", ([], []))
            x.append(leaf_files.tweet("user", " ".join(said)))
            y.append(row % 2)
        leaf_files.write(root / "sent140" / part, f"all_data_{part}_9.json", users)
    lines = [
        f"{word} " + " ".join(f"{value:.5f}" for value in draw.normal(0.5 - (word in sad), 0.3, 300))
        for word in (*glad, *sad, *others)
    ]
    (root / "glove.6B.300d.txt").write_text("\n".join(lines) + "\n")
    return {"kind": "sent140"}


WRITERS: dict[str, Callable[[Path, pytest.MonkeyPatch, int], Document]] = {
    "grey bytes": grey,
    "colour bytes": colour,
    "real images": floats,
    "tables": table,
    "characters": characters,
    "text": text,
    "words": words,
}
"""By family, each writes training samples, about as many as it is told, and gives its block."""
