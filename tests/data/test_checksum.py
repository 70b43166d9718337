"""The checksum of a data set changes with anything in it, and with nothing else."""

import hashlib
from dataclasses import replace

import numpy as np
import torch

from fedcore.data.federated import Keys, Samples, UndividedDataset, checksum

FEATURES = torch.arange(12, dtype=torch.float32).view(2, 2, 3)
WHOLE = UndividedDataset(
    Samples(FEATURES, torch.tensor([1, 0])), Samples(FEATURES[:1], torch.tensor([1])), "numbers"
)


def test_it_is_sha256_over_types_shapes_and_bytes() -> None:
    longhand = hashlib.sha256()
    for head, values, kind in (
        ("<f4 (2, 2, 3)", range(12), np.float32),
        ("<i8 (2,)", [1, 0], np.int64),
        ("<f4 (1, 2, 3)", range(6), np.float32),
        ("<i8 (1,)", [1], np.int64),
    ):
        longhand.update(f"{head}\n".encode() + np.array(values, kind).tobytes())
    assert checksum(WHOLE) == longhand.hexdigest()


def test_any_change_changes_it() -> None:
    changed = FEATURES.clone()
    changed[1, 0, 2] += 1
    keys = Keys(np.array([0, 1]), np.array([0]))
    others = [
        replace(WHOLE, train=Samples(changed, WHOLE.train.labels)),
        replace(WHOLE, train=Samples(FEATURES.view(2, 3, 2), WHOLE.train.labels)),
        replace(WHOLE, train=Samples(FEATURES.double(), WHOLE.train.labels)),
        replace(WHOLE, test=Samples(FEATURES[:0], torch.tensor([], dtype=torch.int64))),
        replace(WHOLE, keys=keys),
        replace(WHOLE, keys=replace(keys, test=np.array([-1]))),
    ]
    assert len({checksum(dataset) for dataset in [WHOLE, *others]}) == 7


def test_how_the_numbers_lie_in_memory_does_not_count() -> None:
    turned = FEATURES.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not turned.is_contiguous()
    assert checksum(
        replace(WHOLE, train=Samples(turned, WHOLE.train.labels), source="elsewhere")
    ) == checksum(WHOLE)
