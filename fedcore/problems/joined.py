"""Cohorts of several divisions, of one data set or of several small ones, as the clients of one division."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedcore.data.federated import FederatedData, Ids, Samples
from fedcore.problems import base
from fedcore.problems.batches import rows_of


def data_kind(data: FederatedData) -> Hashable:
    """What divisions have in common whose clients can be joined: the data set, or its shape where little is to be copied."""
    train, dataset = data.dataset.train, data.dataset
    if dataset.augmentation is not None or dataset.vectors is not None or train.features.nbytes > base.working_bytes(train.features.device):
        return id(train.features)
    return train.features.shape[1:], train.features.dtype, train.labels.dtype


def joined(cohorts: Sequence[tuple[FederatedData, Ids]]) -> FederatedData:
    """The clients [M] of each of the divisions, which are of one kind, one after another; for training only."""
    first, sizes = cohorts[0][0].dataset, [data.offsets[clients + 1] - data.offsets[clients] for data, clients in cohorts]
    places = [torch.from_numpy(rows_of(data.offsets[clients], own)) for (data, clients), own in zip(cohorts, sizes, strict=True)]
    orders = [data.order[place.to(data.order.device)] for (data, _), place in zip(cohorts, places, strict=True)]
    offsets = np.cumsum([0, *np.concatenate(sizes)])
    order, trains = torch.cat(orders), [data.dataset.train for data, _ in cohorts]
    if all(train.features is first.train.features for train in trains):
        return FederatedData(first, order, offsets)
    taken = [train.take(rows) for train, rows in zip(trains, orders, strict=True)]
    train = Samples(torch.cat([part.features for part in taken]), torch.cat([part.labels for part in taken]))
    return FederatedData(replace(first, train=train), torch.arange(len(order), device=order.device), offsets)
