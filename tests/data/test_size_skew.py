"""Partitions that skew sizes, features and domains: against their definitions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcore import ExperimentSpec, Simulation
from fedcore.data.federated import FederatedData, Keys, Samples, UndividedDataset
from fedcore.data.loading import federate
from fedcore.data.partition import partition
from fedcore.data.size_skew import FeatureNoisePartition, FeatureScalePartition, QuantitySkewPartition
from fedcore.errors import SpecificationError
from fedcore.lazy import LazyModule
from fedcore.random import generator
from fedcore.spec.problem import Problem as ProblemSpec
from tests.builders.specifications import Document, merged

stats: Any = LazyModule("scipy.stats")
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), 200))


def quantity_skew(clients: int, alpha: float, least: int = 1) -> QuantitySkewPartition:
    return QuantitySkewPartition(kind="quantity_skew", clients=clients, alpha=alpha, min_samples=least)


@pytest.mark.parametrize("seed", range(5))
def test_quantity_skew_is_niid_benchs_loop(seed: int) -> None:
    """`iid-diff-quantity` written out: shares of a shuffled list, drawn until all are large enough."""
    parts = partition(quantity_skew(6, 0.5, 20), LABELS, seed)
    draw = generator(seed, "partition")
    order = draw.permutation(len(LABELS)).tolist()
    pieces: list[list[int]] = [[]]
    while min(map(len, pieces)) < 20:
        shares = draw.dirichlet([0.5] * 6)
        ends = [int(sum(shares[: client + 1].tolist()) * len(LABELS) + 1e-9) for client in range(5)] + [1000]
        pieces = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [part.tolist() for part in parts] == pieces


def test_shares_of_quantity_skew_are_beta_distributed() -> None:
    """A coordinate of Dirichlet(a, ..., a) over N is Beta(a, (N - 1) a)."""
    shares = [len(partition(quantity_skew(4, 3.0), LABELS, seed)[0]) / len(LABELS) for seed in range(400)]
    assert stats.kstest(shares, stats.beta(3.0, 9.0).cdf).pvalue > 0.01


def test_quantity_skew_that_never_fits_is_refused() -> None:
    with pytest.raises(SpecificationError, match="fewer than 90 samples"):
        partition(quantity_skew(10, 0.01, 90), LABELS, 0)


def dataset(count: int = 40, tests: int = 12, owners: int = 3) -> UndividedDataset:
    """Features are the number of the sample; owners take turns."""

    def part(first: int, length: int) -> Samples:
        numbers = torch.arange(first, first + length)
        return Samples(numbers.double()[:, None].expand(-1, 500).clone(), numbers % 2)

    keys = Keys(np.arange(count) % owners, np.arange(tests) % owners)
    return UndividedDataset(part(0, count), part(count, tests), "numbers", keys)


def noisy(clients: int = 4, seed: int | None = None, hold_out: float | None = None) -> FeatureNoisePartition:
    return FeatureNoisePartition(
        kind="feature_noise", clients=clients, variance=0.5, seed=seed, hold_out=hold_out
    )


def noise_of(data: FederatedData, client: int) -> torch.Tensor:
    rows = data.rows(client)
    return data.dataset.train.features[rows] - rows.double()[:, None]


def test_the_variance_of_feature_noise_grows_with_the_client() -> None:
    data = noisy().divide(dataset(), 0)
    for client in range(4):
        noise = noise_of(data, client).flatten().numpy()
        expected = stats.norm(0, (0.5 * (client + 1) / 4) ** 0.5)
        assert stats.kstest(noise, expected.cdf).pvalue > 0.001


def test_feature_noise_is_drawn_by_seed_and_client_and_leaves_the_data_set() -> None:
    whole = dataset()
    first, again, other = (noisy().divide(whole, seed) for seed in (0, 0, 1))
    assert torch.equal(first.dataset.train.features, again.dataset.train.features)
    assert not torch.equal(noise_of(first, 0), noise_of(other, 0))
    assert not torch.equal(noise_of(first, 0) / 0.5, noise_of(first, 1) / 0.5**0.5)
    assert torch.equal(noisy(seed=0).divide(whole, 7).dataset.train.features, first.dataset.train.features)
    assert torch.equal(whole.train.features, dataset().train.features)
    assert torch.equal(first.dataset.test.features, whole.test.features)


@pytest.mark.parametrize("hold_out", [None, 0.25])
def test_the_scale_of_features_rises_from_the_first_client_to_the_last(hold_out: float | None) -> None:
    """Three clients: x / 4 - 1, x and 4 x + 1, of test samples only if they belong to clients."""
    scaled = FeatureScalePartition(kind="feature_scale", clients=3, factor=4.0, shift=1.0, hold_out=hold_out)
    whole = dataset()
    data, plain = scaled.divide(whole, 0), scaled.model_copy(update={"factor": 1.0, "shift": 0.0})
    original = plain.divide(whole, 0)
    for client, (factor, shift) in enumerate([(0.25, -1.0), (1.0, 0.0), (4.0, 1.0)]):
        rows = data.rows(client)
        expected = factor * original.dataset.train.features[rows] + shift
        torch.testing.assert_close(data.dataset.train.features[rows], expected, rtol=0, atol=1e-12)
    if hold_out is None:
        assert torch.equal(data.dataset.test.features, whole.test.features)
    else:
        assert data.owners is not None
        last = torch.from_numpy(data.owners == 2)
        expected = 4 * original.dataset.test.features[last] + 1
        torch.testing.assert_close(data.dataset.test.features[last], expected, rtol=0, atol=1e-12)


def test_one_client_sees_its_features_as_they_are() -> None:
    alone = FeatureScalePartition(kind="feature_scale", clients=1, factor=4.0, shift=1.0)
    whole = dataset()
    assert torch.equal(alone.divide(whole, 0).dataset.train.features, whole.train.features)


def test_test_samples_held_out_of_a_client_are_as_noisy_as_the_client() -> None:
    data = noisy(hold_out=0.25).divide(dataset(), 0)
    numbers = data.dataset.test.features.mean(1).round()
    noise = (data.dataset.test.features - numbers[:, None]).var(1)
    assert data.owners is not None
    means = [float(noise[torch.from_numpy(data.owners == client)].mean()) for client in range(4)]
    np.testing.assert_allclose(means, [0.125, 0.25, 0.375, 0.5], rtol=0.15)


@pytest.mark.parametrize("hold_out", [None, 0.25])
@pytest.mark.parametrize("rotations", [2, 4])
def test_clients_see_their_images_at_the_angle_of_their_group(rotations: int, hold_out: float | None) -> None:
    shape = {"kind": "digits"}
    plain, turned = (
        ProblemSpec.model_validate(
            {
                "dataset": shape,
                "partition": {"kind": kind, "clients": 6, "hold_out": hold_out, **options},
                "model": {"kind": "logistic"},
            }
        )
        for kind, options in (("iid", {}), ("rotated", {"rotations": rotations}))
    )
    before, after = (
        federate(spec, 0, "cpu", torch.float64, Path(), None)  # type: ignore[arg-type]
        for spec in (plain, turned)
    )
    for client in range(6):
        quarters = {2: [0, 2], 4: [0, 1, 2, 3]}[rotations][client % rotations]
        rows = before.rows(client)
        expected = before.dataset.train.take(rows).features.rot90(quarters, (2, 3))
        assert torch.equal(after.dataset.train.take(after.rows(client)).features, expected)
        if hold_out is not None:
            assert before.owners is not None
            tested = torch.from_numpy(np.flatnonzero(before.owners == client))
            expected = before.dataset.test.take(tested).features.rot90(quarters, (2, 3))
            assert torch.equal(after.dataset.test.take(tested).features, expected)
    if hold_out is None:
        assert torch.equal(after.dataset.test.features, before.dataset.test.features)


def test_only_images_are_rotated() -> None:
    problem = {"dataset": {"kind": "sent140"}, "partition": {"kind": "rotated", "clients": 3}}
    with pytest.raises(SpecificationError, match="symbols"):
        ExperimentSpec.model_validate(
            merged(DIGITS, {"problem": {**problem, "model": {"kind": "sent_lstm"}}})
        )


def test_features_that_are_symbols_take_no_noise() -> None:
    document = merged(DIGITS, {"problem": {"partition": {"kind": "feature_noise", "clients": 3}}})
    document["problem"] |= {"dataset": {"kind": "shakespeare"}, "model": {"kind": "char_lstm"}}
    with pytest.raises(SpecificationError, match="symbols"):
        ExperimentSpec.model_validate(document)


DIGITS: Document = {
    "name": "skewed",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 3},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 50},
    "rounds": 2,
    "execution": {"precision": "float64"},
}


@pytest.mark.parametrize(
    "chosen",
    [
        {"kind": "feature_noise", "clients": 3, "variance": 0.2},
        {"kind": "feature_scale", "clients": 3, "factor": 2.0, "shift": 0.5},
        {"kind": "rotated", "clients": 3, "rotations": 4},
        {"kind": "quantity_skew", "clients": 3, "alpha": 0.5},
        {"kind": "inner_dirichlet", "clients": 3, "alpha": 0.5, "sigma": 0.3},
    ],
    ids=lambda chosen: chosen["kind"],
)
def test_the_engines_agree_and_a_run_resumes(chosen: Document, tmp_path: Path) -> None:
    def simulation(engine: str) -> Simulation:
        document = merged(DIGITS, {"execution": {"engine": engine}})
        document["problem"]["partition"] = chosen
        return Simulation(ExperimentSpec.model_validate(document), 0, data_dir=tmp_path)

    def parameters(running: Simulation) -> torch.Tensor:
        while not running.finished:
            running.advance()
        return torch.cat([part.flatten() for part in running.model().values()])

    reference, resumed = simulation("reference"), simulation("vectorised")
    first = simulation("vectorised")
    first.advance()
    resumed.restore(first.checkpoint())
    whole = parameters(first)
    assert torch.equal(whole, parameters(resumed))
    torch.testing.assert_close(whole, parameters(reference), rtol=0, atol=1e-9)
