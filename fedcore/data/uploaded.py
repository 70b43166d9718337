"""Users' own data, as they were kept: divided over their clients, or in one piece."""

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data.federated import Dataset, FederatedData, Samples
from fedcore.spec.uploaded import Uploaded
from fedcore.uploads import canonical
from fedcore.uploads.shelves import Shelf


def uploaded(spec: Uploaded, shelf: Shelf) -> Dataset | FederatedData:
    """Read the data set from `shelf` and check its digest; FederatedData if it says who holds what. Raises DataUnavailableError."""
    with shelf.open(spec) as file:
        samples = canonical.load(file, spec.known)
    dataset = Dataset(_part(samples, ~samples.test), _part(samples, samples.test), _source(spec), checksum=spec.known.digest)
    if samples.clients is None:
        return dataset
    assert samples.sizes is not None
    # Stable, so that each client's samples keep the order of the file.
    order = np.argsort(samples.clients.codes[~samples.test], kind="stable")
    return FederatedData(dataset, torch.from_numpy(order), np.cumsum([0, *samples.sizes]))


def _part(samples: canonical.Samples, rows: NDArray[np.bool_]) -> Samples:
    whole = bool(rows.all())
    features, labels = (array if whole else array[rows] for array in (samples.features, samples.label))
    numbers = torch.from_numpy(features)
    # Bytes save space in the file; here whole numbers would be symbols.
    return Samples(numbers if numbers.is_floating_point() else numbers.float(), torch.from_numpy(labels))


def _source(spec: Uploaded) -> str:
    return f"uploaded {spec.id or 'file'} (sha256 {spec.known.digest})"
