"""Random data in the shapes of the public sets, so that every machine measures on the same.

Images are a class's pattern of 4 x 4 blocks plus noise, so that training has something to learn and
differences of rounding stay small; texts are random letters. An engine's work does not depend on
what they show.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.leaf import ALPHABET, LENGTH, TEXT
from fedcore.data.uploaded import local_dataset_storage
from fedcore.data.user_datasets import Clients, UserSamples

NOISE = 0.5
"""Its deviation; that of the patterns is 1."""
_ROWS = 1_000
"""Samples drawn together."""


def images(
    name: str,
    shape: tuple[int, ...],
    folder: Path,
    *,
    samples: int = 0,
    sizes: NDArray[np.int64] | None = None,
    dtype: type[np.generic] = np.float32,
    classes: int = 10,
) -> dict[str, Any]:
    """Return the block `problem.dataset` of `samples` images in one piece, or of `sizes` [N] per
    client; as bytes with `dtype` uint8.

    Drawn once, then kept in `folder`.
    """
    described = folder / f"{name}-in-blocks.json"
    if not described.exists():
        folder.mkdir(parents=True, exist_ok=True)
        block = _keep(
            _drawn(shape, samples if sizes is None else int(sizes.sum()), sizes, dtype, classes), folder
        )
        described.write_text(json.dumps(block))
    return dict(json.loads(described.read_text()))


def _drawn(
    shape: tuple[int, ...],
    samples: int,
    sizes: NDArray[np.int64] | None,
    dtype: type[np.generic],
    classes: int,
) -> UserSamples:
    lot = np.random.default_rng(0)
    patterns = _patterns(shape, classes, lot)
    labels = lot.integers(classes, size=samples)
    labels[:classes] = np.arange(classes)
    features = np.empty((samples, *shape), np.float32)
    for start in range(0, samples, _ROWS):
        part = features[start : start + _ROWS]
        lot.standard_normal(dtype=np.float32, out=part)
        part *= NOISE
        part += patterns[labels[start : start + _ROWS]]
    if dtype is np.uint8:
        features = np.clip(64 * features + 128, 0, 255)
    held = None if sizes is None else Clients.of(np.repeat(np.arange(len(sizes)), sizes))
    return UserSamples(features.astype(dtype, copy=False), labels, held, np.zeros(samples, np.bool_))


def _patterns(shape: tuple[int, ...], classes: int, lot: np.random.Generator) -> NDArray[np.float32]:
    """[classes, *shape]."""
    channels, height, width = shape
    blocks = lot.standard_normal((classes, channels, -(-height // 4), -(-width // 4)), np.float32)
    return np.repeat(np.repeat(blocks, 4, axis=2), 4, axis=3)[:, :, :height, :width]


def _keep(samples: UserSamples, folder: Path) -> dict[str, Any]:
    content = samples.content
    path = local_dataset_storage(folder).path(content.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        samples.save(file)
    return {"kind": "uploaded", "content": content.model_dump(mode="json")}


def plays(folder: Path, roles: int, windows: int) -> dict[str, Any]:
    """Return the same for a text with this many speaking roles of about this many training windows
    each, of which each follows the one before by a character.
    """
    lot = np.random.default_rng(0)
    # Four of five windows are for training; of one role's there are enough for some to test on.
    lengths = LENGTH + (lot.uniform(0.5, 1.5, roles) * windows * 1.25).astype(int)
    lengths[0] = LENGTH + 5 * LENGTH + 25
    _speak(folder / TEXT, lengths, lot)
    return {"kind": "shakespeare", "form": "text"}


def speeches(folder: Path, roles: int, windows: int) -> dict[str, Any]:
    """Return the same with windows that do not overlap and have a label for each character, none of
    them padded.
    """
    lot, name = np.random.default_rng(0), "speeches.txt"
    # The line's end is the last label.
    lengths = LENGTH * (lot.uniform(0.5, 1.5, roles) * windows * 1.25).astype(int)
    _speak(folder / name, lengths, lot)
    return {"kind": "text", "file": name, "length": LENGTH, "owners": "speakers"}


def _speak(path: Path, lengths: NDArray[np.int64], lot: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    letters = np.array(list(ALPHABET[-27:-1]))
    said = ("".join(lot.choice(letters, length)) for length in lengths)
    path.write_text("\n\n".join(f"R{role}:\n{speech}" for role, speech in enumerate(said)), encoding="utf-8")
