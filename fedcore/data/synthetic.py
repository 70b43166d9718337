"""Synthetic(alpha, beta) of FedProx, as its official generator draws it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data.federated import FederatedData, Samples
from fedcore.data.random import generator
from fedcore.spec.dataset import Synthetic
from fedcore.spec.shapes import SYNTHETIC_CLASSES, SYNTHETIC_FEATURES

TRAIN_SHARE = 0.9
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Client:
    """The distribution of one client: labels argmax(z W + b), inputs z ~ N(mean, Sigma)."""

    weights: Floats
    bias: Floats
    mean: Floats


def synthetic(spec: Synthetic, seed: int) -> FederatedData:
    """Draw the data (FedProx, Section 5.1 and its code; alpha and beta are standard deviations, as in the code).

    u_k ~ N(0, alpha), B_k ~ N(0, beta), v_k ~ N(B_k, 1) per coordinate; W_k, b_k ~ N(u_k, 1); z ~ N(v_k, Sigma) with
    Sigma_jj = j^-1.2; n_k = 50 + int(lognormal(4, 2)). The first 90 % of a client's samples are for training.
    """
    draw = generator(seed, "synthetic")
    sizes = draw.lognormal(4, 2, spec.clients).astype(int) + 50
    deviations = np.arange(1, SYNTHETIC_FEATURES + 1) ** -0.6
    train, test = [], []
    for client, size in zip(_clients(spec, draw), sizes, strict=True):
        z = client.mean + deviations * draw.normal(size=(size, SYNTHETIC_FEATURES))
        labels = (z @ client.weights + client.bias).argmax(1)
        cut = int(TRAIN_SHARE * size)
        train.append((z[:cut], labels[:cut]))
        test.append((z[cut:], labels[cut:]))
    offsets = np.concatenate([[0], np.cumsum([len(labels) for _, labels in train])]).astype(np.int64)
    together, held_out = _joined(train), _joined(test)
    return FederatedData(together.features, together.labels, offsets, held_out, SYNTHETIC_CLASSES, _name(spec))


def _clients(spec: Synthetic, draw: np.random.Generator) -> list[_Client]:
    shape = (SYNTHETIC_FEATURES, SYNTHETIC_CLASSES)
    if spec.iid:
        one = _Client(draw.normal(size=shape), draw.normal(size=SYNTHETIC_CLASSES), np.zeros(SYNTHETIC_FEATURES))
        return [one] * spec.clients
    model_means = draw.normal(0, spec.alpha, spec.clients)
    input_means = draw.normal(0, spec.beta, spec.clients)
    means = draw.normal(input_means[:, None], 1, (spec.clients, SYNTHETIC_FEATURES))
    return [
        _Client(draw.normal(u, 1, shape), draw.normal(u, 1, SYNTHETIC_CLASSES), mean) for u, mean in zip(model_means, means, strict=True)
    ]


def _joined(parts: list[tuple[Floats, NDArray[np.int64]]]) -> Samples:
    features, labels = zip(*parts, strict=True)
    return Samples(torch.from_numpy(np.concatenate(features)), torch.from_numpy(np.concatenate(labels)))


def _name(spec: Synthetic) -> str:
    return "Synthetic (iid)" if spec.iid else f"Synthetic({spec.alpha:g},{spec.beta:g})"
