"""What samples must be to be trained on, whatever they were read from."""

import torch
from torch import Tensor

from fedcore.data.federated import Dataset, Samples
from fedcore.errors import DataUnavailableError
from fedcore.spec.parameters import DataShape

_CHUNK = 1 << 24
"""Numbers looked at together."""


def sound(dataset: Dataset, shape: DataShape) -> Dataset:
    """The data set itself; raises DataUnavailableError when it holds NaN or infinity, or is not of the shape it should be."""
    for name, part in (("training", dataset.train), ("test", dataset.test)):
        wrong = _wrong(part, shape)
        if wrong:
            raise DataUnavailableError(f"{dataset.source}: {name} sample {wrong}; put the files in place as they were published")
    if dataset.vectors is not None and not torch.isfinite(dataset.vectors).all():
        raise DataUnavailableError(f"{dataset.source}: a word's vector is not finite; put the files in place as they were published")
    return dataset


def _wrong(samples: Samples, shape: DataShape) -> str | None:
    features = tuple(samples.features.shape[1:])
    if features != shape.features:
        return f"0 has shape {list(features)} instead of {list(shape.features)}"
    outside = torch.nonzero((samples.labels < 0) | (samples.labels >= shape.classes))
    if len(outside):
        row = int(outside[0])
        return f"{row} is of class {int(samples.labels[row])}, and classes are numbered from 0 to {shape.classes - 1}"
    bad = _first_not_finite(samples.features) if samples.features.is_floating_point() else None
    return None if bad is None else f"{bad} holds a number that is not finite"


def _first_not_finite(features: Tensor) -> int | None:
    if not len(features):
        return None
    rows = max(1, _CHUNK // features[0].numel())
    for place, chunk in enumerate(torch.split(features, rows)):
        bad = torch.nonzero(~torch.isfinite(chunk.flatten(1)).all(1))
        if len(bad):
            return place * rows + int(bad[0])
    return None
