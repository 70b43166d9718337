"""Synthetic(alpha, beta): against its generator written out, and against the distributions of
FedProx, Section 5.1.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.data.federated import FederatedData
from fedcore.data.synthetic import Synthetic
from fedcore.lazy import LazyModule
from fedcore.random import generator

stats: Any = LazyModule("scipy.stats")

Client = tuple[list[list[float]], list[int]]


def spec(alpha: float = 1.0, beta: float = 1.0, *, iid: bool = False, clients: int = 5) -> Synthetic:
    return Synthetic(kind="synthetic", alpha=alpha, beta=beta, iid=iid, clients=clients)


def drawn_data(spec: Synthetic, seed: int) -> FederatedData:
    return spec.for_seed(seed).load(Path())


def longhand(spec: Synthetic, seed: int) -> list[Client]:
    """The official generator, one number after another: sizes, u_k, B_k, every v_k.

    Then W_k, b_k and the samples by client.
    """
    draw = generator(seed, "synthetic")
    sizes = [50 + int(draw.lognormal(4, 2)) for _ in range(spec.clients)]
    if spec.iid:
        weights, bias = (
            [[draw.normal(0, 1) for _ in range(10)] for _ in range(60)],
            [draw.normal(0, 1) for _ in range(10)],
        )
        return [samples(draw, size, [0.0] * 60, weights, bias) for size in sizes]
    u = [draw.normal(0, spec.alpha) for _ in range(spec.clients)]
    centres = [draw.normal(0, spec.beta) for _ in range(spec.clients)]
    v = [[draw.normal(centre, 1) for _ in range(60)] for centre in centres]
    clients = []
    for k, size in enumerate(sizes):
        weights = [[draw.normal(u[k], 1) for _ in range(10)] for _ in range(60)]
        bias = [draw.normal(u[k], 1) for _ in range(10)]
        clients.append(samples(draw, size, v[k], weights, bias))
    return clients


def samples(
    draw: np.random.Generator, size: int, mean: list[float], weights: list[list[float]], bias: list[float]
) -> Client:
    inputs = [
        [mean[j] + draw.normal(0, 1) * ((j + 1) ** -1.2) ** 0.5 for j in range(60)] for _ in range(size)
    ]
    scores = [[sum(z[j] * weights[j][c] for j in range(60)) + bias[c] for c in range(10)] for z in inputs]
    return inputs, [max(range(10), key=row.__getitem__) for row in scores]


@pytest.mark.parametrize(
    "drawn", [spec(1.0, 0.5, clients=2), spec(iid=True, clients=2)], ids=["heterogeneous", "iid"]
)
def test_the_data_are_those_of_the_generator_written_out(drawn: Synthetic) -> None:
    data = drawn_data(drawn, seed=3)
    for client, (features, labels) in enumerate(longhand(drawn, seed=3)):
        cut = int(0.9 * len(labels))
        held = data.dataset.train.take(data.rows(client))
        np.testing.assert_allclose(held.features, features[:cut], rtol=1e-12)
        assert held.labels.tolist() == labels[:cut]


def test_the_last_tenth_of_every_client_is_for_testing() -> None:
    drawn = spec(clients=2)
    clients = longhand(drawn, seed=3)
    rest = [label for _, labels in clients for label in labels[int(0.9 * len(labels)) :]]
    assert drawn_data(drawn, seed=3).dataset.test.labels.tolist() == rest


def full_sizes(data: FederatedData) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Training and test samples of each client, to within a sample."""
    return data.sizes / 0.9


def test_sizes_follow_a_shifted_lognormal() -> None:
    sizes = np.concatenate([full_sizes(drawn_data(spec(clients=60), seed)) for seed in range(3)])
    # From 60 on, where rounding to whole samples does not show.
    logs = np.log(sizes[sizes > 60] - 50)
    tail = stats.truncnorm((np.log(10) - 4) / 2, np.inf, loc=4, scale=2)
    assert stats.kstest(logs, tail.cdf).pvalue > 0.01


def test_beta_is_the_deviation_of_client_means_and_alpha_plays_no_part_in_them() -> None:
    beta, clients = 3.0, 100
    data = drawn_data(spec(0.0, beta, clients=clients), seed=1)
    means = np.array(
        [float(data.dataset.train.take(data.rows(client)).features.mean()) for client in range(clients)]
    )
    expected = np.sqrt(beta**2 + 1 / 60)
    assert abs(means.std() - expected) < 4 * expected / np.sqrt(2 * clients)


def test_features_have_variance_j_to_the_minus_1_2() -> None:
    train = drawn_data(spec(iid=True, clients=40), seed=0).dataset.train.features
    variances = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(train.var(0), variances, rtol=5 * np.sqrt(2 / len(train)))
    np.testing.assert_allclose(train.mean(0), 0, atol=5 * np.sqrt(1 / len(train)))


def test_synthetic_data_are_called_so() -> None:
    assert drawn_data(spec(0.5, 1.0), 0).dataset.source == "Synthetic(0.5, 1)"
    assert drawn_data(spec(iid=True), 0).dataset.source == "Synthetic (iid)"
