"""The papers' settings of data and work, each a specification: who holds what, and how many steps
that makes.
"""

from typing import Any

import numpy as np
import pytest

from fedcore import ExperimentSpec
from fedcore.data.federated import Ids
from fedcore.data.partition import partition
from fedcore.data.partitions import AnyPartition
from fedcore.systems.work import plan_work
from tests.builders.specifications import Document, merged

CIFAR10 = np.repeat(np.arange(10), 5_000)
"""As many training images of each class as CIFAR-10 has."""
FEDNOVA: Document = {
    "name": "FedNova, Table I",
    "problem": {
        "dataset": {"kind": "cifar10", "augmentation": "crop_flip"},
        "partition": {"kind": "dirichlet", "clients": 16, "alpha": 0.1, "variant": "fednova", "seed": 2020},
        "model": {"kind": "vgg11"},
    },
    "algorithm": {"kind": "fednova"},
    "local": {"lr": 0.05, "epochs": 2, "batch_size": 32},
    "rounds": 100,
}
STATISTICAL: Document = {
    "name": "FedAWARE, Table 1",
    "problem": {
        "dataset": {"kind": "cifar10", "augmentation": "crop_flip"},
        "partition": {"kind": "shards", "clients": 100, "shards_per_client": 2},
        "model": {"kind": "fedaware_cnn"},
    },
    "algorithm": {"kind": "fedaware"},
    "local": {"lr": 0.01, "epochs": 3, "batch_size": 64},
    "participation": {"kind": "uniform", "fraction": 0.1},
    "rounds": 500,
}
HYBRID = merged(STATISTICAL, {"problem": {"partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.1}}})
HYBRID_PLUS = merged(
    HYBRID,
    {
        "systems": {
            "epochs": {"kind": "uniform", "low": 2, "high": 5},
            "batch_size": {"kind": "uniform", "low": 10, "high": "samples"},
        }
    },
)


def held(document: Document, seed: int = 0) -> tuple[ExperimentSpec, list[Ids]]:
    spec = ExperimentSpec.model_validate(document)
    chosen: AnyPartition | None = spec.problem.partition
    assert chosen is not None
    return spec, partition(chosen, CIFAR10, seed)


def steps(document: Document, round: int = 1, **changes: Any) -> Ids:
    """tau_i of every client in a round in which all take part."""
    spec, parts = held(merged(document, changes))
    sizes = np.array([len(part) for part in parts])
    work, _ = plan_work(spec.local, spec.systems, sizes, np.arange(len(sizes)), 0, round)
    return np.array([item.steps for item in work])


def test_fednovas_split_is_that_of_its_table() -> None:
    """16 to 408 local steps with two epochs, 16 to 1,020 with two to five (Table I)."""
    assert (steps(FEDNOVA).min(), steps(FEDNOVA).max()) == (16, 408)
    assert steps(FEDNOVA, local={"epochs": 5}).max() == 1_020
    sizes = [298, 1077, 4862, 1743, 3713, 3867, 1600, 3271, 3825, 6520, 4596, 1270, 3437, 4750, 248, 4923]
    assert [len(part) for part in held(FEDNOVA)[1]] == sizes


@pytest.mark.parametrize("seed", range(3))
def test_clients_hold_from_10_samples_to_a_class_beyond_their_share(seed: int) -> None:
    _, parts = held(merged(FEDNOVA, {"problem": {"partition": {"variant": "per_class", "seed": None}}}), seed)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == 50_000
    assert 10 <= min(sizes) < 1_500
    assert 50_000 / 16 < max(sizes) <= 50_000 / 16 + 5_000


def test_fednovas_steps_are_epochs_times_batches_the_short_last_one_counted() -> None:
    """E ~ U(2, 5) makes them vary by round."""
    _, parts = held(FEDNOVA)
    assert steps(FEDNOVA).tolist() == [2 * -(-len(part) // 32) for part in parts]
    drawn = {"systems": {"epochs": {"kind": "uniform", "low": 2, "high": 5}}}
    first, second = (steps(FEDNOVA, round, **drawn) for round in (1, 2))
    assert {int(tau) for tau in 2 * first // steps(FEDNOVA)} <= {2, 3, 4, 5}
    assert (first != second).any()


def test_fedawares_statistical_setting_has_equal_work_on_two_shards_each() -> None:
    _, parts = held(STATISTICAL)
    assert {len(part) for part in parts} == {500}
    assert max(len(np.unique(CIFAR10[part])) for part in parts) == 2
    assert set(steps(STATISTICAL).tolist()) == {3 * 8}


def test_fedawares_hybrid_setting_has_unequal_work_by_size() -> None:
    _, parts = held(HYBRID)
    assert steps(HYBRID).tolist() == [3 * -(-len(part) // 64) for part in parts]
    assert len(np.unique(steps(HYBRID))) > 10


def test_fedawares_hybrid_plus_setting_draws_epochs_and_batches_anew_each_round() -> None:
    """E ~ U{2..5} and B ~ U{10..n_i}: between two steps and five epochs of batches of ten."""
    _, parts = held(HYBRID_PLUS)
    sizes = np.array([len(part) for part in parts])
    rounds = np.array([steps(HYBRID_PLUS, round) for round in (1, 2, 3)])
    assert (rounds >= 2).all()
    assert (rounds <= 5 * np.ceil(sizes / 10)).all()
    assert (rounds[0] != rounds[1]).mean() > 0.5
