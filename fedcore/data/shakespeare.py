"""Shakespeare by speaking role: windows of 80 characters and the one that follows, from LEAF's JSON files or a plain text."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.federated import Dataset, Ids
from fedcore.data.leaf import Made, assemble, read_leaf
from fedcore.errors import DataUnavailableError
from fedcore.spec.dataset import Shakespeare

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters; any other is read as a space."""
LENGTH = 80
TRAIN_SHARE = 0.8
TEXT = "tinyshakespeare.txt"
_ROLE = re.compile(r"([A-Z][^\n:]*):\n")
_CODES = np.full(128, ALPHABET.index(" "), np.uint8)
_CODES[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


def shakespeare(spec: Shakespeare, data_dir: Path) -> Dataset:
    """Characters [n, 80] as numbers below 80, and the one that follows each window."""
    if spec.form == "leaf":
        return read_leaf("shakespeare", "Shakespeare (LEAF)", data_dir, _encode)
    path = data_dir / TEXT
    try:
        return from_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataUnavailableError(
            f"the plays cannot be read from {path} ({error}); put the text there, each speech after its speaker's name and a colon and "
            "before an empty line, or set FEDQ_DATA_DIR to where it is"
        ) from error


def from_text(text: str) -> Dataset:
    """Every role's speeches in order, one after another, cut into overlapping windows; split by time as LEAF does.

    The first 80 % of a role's windows are for training. The 80 after them hold what the last training windows are to foretell and
    are left out; the rest are for testing.
    """
    train, test = [], []
    for role, speeches in _speeches(text).items():
        windows, following = _windows("".join(speeches))
        cut = int(TRAIN_SHARE * len(following))
        train.append(Made(role, windows[:cut], following[:cut]))
        test.append(Made(role, windows[cut + LENGTH :], following[cut + LENGTH :]))
    return assemble(train, test, "Shakespeare (plain text)")


def _speeches(text: str) -> dict[str, list[str]]:
    speeches: dict[str, list[str]] = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        speaker = _ROLE.match(block)
        if speaker is not None:
            speeches.setdefault(speaker[1], []).append(block[speaker.end() :] + "\n")
    return speeches


def _windows(text: str) -> tuple[NDArray[np.uint8], Ids]:
    codes = _codes(text)
    if len(codes) <= LENGTH:
        return np.empty((0, LENGTH), np.uint8), np.empty(0, np.int64)
    return np.lib.stride_tricks.sliding_window_view(codes, LENGTH)[:-1], codes[LENGTH:].astype(np.int64)


def _encode(x: list[Any], y: list[Any]) -> tuple[NDArray[np.uint8], Ids]:
    windows, following = _codes("".join(x)), _codes("".join(y))
    if {len(window) for window in x} != {LENGTH} or len(following) != len(y):
        raise ValueError(f"a sample must be {LENGTH} characters and the one that follows")
    return windows.reshape(-1, LENGTH), following.astype(np.int64)


def _codes(text: str) -> NDArray[np.uint8]:
    return np.asarray(_CODES[np.frombuffer(re.sub(r"[^\x00-\x7f]", " ", text).encode(), np.uint8)])
