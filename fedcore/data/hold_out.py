"""A test set made of a share of every client's own samples."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedcore.data.federated import Dataset, FederatedData, Samples, divide
from fedcore.data.pools import Ids
from fedcore.data.random import generator
from fedcore.spec.base import ceil_share


def pooled(dataset: Dataset) -> Dataset:
    """The data set with its test samples behind its training samples, all to be divided; whose they are is not kept."""
    train, test = dataset.train, dataset.test
    together = Samples(torch.cat([train.features, test.features]), torch.cat([train.labels, test.labels]))
    return replace(dataset, train=together, test=together.take(torch.zeros(0, dtype=torch.int64, device=together.labels.device)), keys=None)


def hold_out(dataset: Dataset, parts: Sequence[Ids], share: float, seed: int) -> FederatedData:
    """Give client i the samples parts[i] but for about a `share` of them, drawn at random, which are tested on."""
    shuffled = [generator(seed, "hold out", client=client).permutation(part) for client, part in enumerate(parts)]
    # As FedProx's code: floor(0.9 n) samples are for training; one at least.
    cuts = [max(1, len(part) - ceil_share(share, len(part))) for part in parts]
    rows = np.concatenate([part[cut:] for part, cut in zip(shuffled, cuts, strict=True)])
    test = dataset.train.take(torch.from_numpy(rows).to(dataset.train.labels.device))
    owners = np.repeat(np.arange(len(parts)), [len(part) - cut for part, cut in zip(shuffled, cuts, strict=True)])
    return divide(replace(dataset, test=test), [part[:cut] for part, cut in zip(shuffled, cuts, strict=True)], owners)
