"""Synthetic(alpha, beta) of FedProx, as its official generator draws it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data.datasets import SYNTHETIC_CLASSES, SYNTHETIC_FEATURES, Synthetic
from fedcore.data.federated import FederatedData, Ids, Samples, UndividedDataset, divide
from fedcore.random import generator

TRAIN_SHARE = 0.9
Floats = NDArray[np.float64]
_SHAPE = (SYNTHETIC_FEATURES, SYNTHETIC_CLASSES)
_DEVIATIONS = np.arange(1, SYNTHETIC_FEATURES + 1) ** -0.6


class _Drawn(NamedTuple):
    """One client's features [n_k, 60] and labels [n_k]."""

    features: Floats
    labels: Ids


def synthetic(spec: Synthetic, seed: int) -> FederatedData:
    """Draw the data (FedProx, Section 5.1, and its code, where alpha and beta are standard
    deviations).

    n_k = 50 + int(lognormal(4, 2)), u_k ~ N(0, alpha), B_k ~ N(0, beta), v_k ~ N(B_k, 1) per
    coordinate; then for each client W_k, b_k ~ N(u_k, 1), z ~ N(v_k, Sigma) with Sigma_jj = j^-1.2,
    label argmax(z W_k + b_k). With `iid` all share one W, b ~ N(0, 1) and v = 0. The first 90 % of
    a client's samples are for training, as in the code (80 % in the paper).
    """
    clients = list(_draw(spec, generator(seed, "synthetic")))
    cuts = [int(TRAIN_SHARE * len(client.labels)) for client in clients]
    train = _together([_Drawn(z[:cut], labels[:cut]) for (z, labels), cut in zip(clients, cuts, strict=True)])
    test = _together([_Drawn(z[cut:], labels[cut:]) for (z, labels), cut in zip(clients, cuts, strict=True)])
    parts = np.split(np.arange(len(train)), np.cumsum(cuts)[:-1])
    owners = np.repeat(
        np.arange(spec.clients), [len(client.labels) - cut for client, cut in zip(clients, cuts, strict=True)]
    )
    return divide(UndividedDataset(train, test, _name(spec)), parts, owners)


def _draw(spec: Synthetic, draw: np.random.Generator) -> Iterator[_Drawn]:
    sizes = draw.lognormal(4, 2, spec.clients).astype(int) + 50
    if spec.iid:
        one = draw.normal(size=_SHAPE), draw.normal(size=SYNTHETIC_CLASSES)
        for size in sizes:
            yield _samples(draw, size, np.zeros(SYNTHETIC_FEATURES), *one)
        return
    model_means = draw.normal(0, spec.alpha, spec.clients)
    input_means = draw.normal(0, spec.beta, spec.clients)
    means = draw.normal(input_means[:, None], 1, (spec.clients, SYNTHETIC_FEATURES))
    for size, u, v in zip(sizes, model_means, means, strict=True):
        yield _samples(draw, size, v, draw.normal(u, 1, _SHAPE), draw.normal(u, 1, SYNTHETIC_CLASSES))


def _samples(draw: np.random.Generator, size: int, mean: Floats, weights: Floats, bias: Floats) -> _Drawn:
    z = mean + _DEVIATIONS * draw.normal(size=(size, SYNTHETIC_FEATURES))
    return _Drawn(z, (z @ weights + bias).argmax(1))


def _together(clients: list[_Drawn]) -> Samples:
    features, labels = zip(*clients, strict=True)
    return Samples(torch.from_numpy(np.concatenate(features)), torch.from_numpy(np.concatenate(labels)))


def _name(spec: Synthetic) -> str:
    return "Synthetic (iid)" if spec.iid else f"Synthetic({spec.alpha:g}, {spec.beta:g})"
