"""Malicious clients: their forged changes against the papers, their data, and what measures see."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.random import Generator
from torch import Tensor

from fedcore.data.federated import FederatedData, Samples, UndividedDataset, divide
from fedcore.errors import SpecificationError
from fedcore.random import generator
from fedcore.simulation.simulation import Simulation
from fedcore.systems.attacks import ATTACKS, Attack, alie_z
from fedcore.testing import runs
from tests.builders.specifications import DIGITS, QUADRATIC, SYNTHETIC, Document, specification

DIM = 6


def attack(kind: str, **fields: Any) -> Attack:
    return ATTACKS.validate({"kind": kind, **fields})


def changes(count: int = 10) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def forged(kind: str, malicious: int = 2, **fields: Any) -> tuple[Tensor, Tensor]:
    """The honest changes, and those of malicious clients, of ten."""
    seen = changes()
    mask = torch.arange(len(seen)) < malicious
    sent = attack(kind, **fields).forge(seen, mask, generator(1, "attack"))
    assert torch.equal(sent[~mask], seen[~mask])
    return seen[~mask], sent[mask]


def test_flipped_signs_are_those_of_the_clients_own_change() -> None:
    _, sent = forged("sign_flipping", scale=4.0)
    assert torch.equal(sent, -4 * changes()[:2])


def test_noise_has_the_standard_deviation_and_differs_between_clients_and_rounds() -> None:
    seen, mask = torch.zeros(50, 400, dtype=torch.float64), torch.ones(50, dtype=torch.bool)
    sent = attack("gaussian_noise", std=3.0).forge(seen, mask, generator(1, "attack", 1))
    # 20,000 numbers: the deviation of their deviation is 3 / sqrt(40,000).
    assert float(sent.std()) == pytest.approx(3.0, abs=5 * 3 / 200)
    assert not torch.equal(sent[0], sent[1])
    other = attack("gaussian_noise", std=3.0).forge(seen, mask, generator(1, "attack", 2))
    assert not torch.equal(sent, other)


@pytest.mark.parametrize(("count", "malicious", "supporters"), [(50, 12, 14), (10, 2, 4)])
def test_a_little_is_enough_stays_where_supporters_are_needed(
    count: int, malicious: int, supporters: int
) -> None:
    """Baruch et al. (ALIE): of n - m honest clients, s must lie beyond z."""
    z = alie_z(count, malicious)
    assert NormalDist().cdf(z) == pytest.approx((count - malicious - supporters) / (count - malicious))


def test_a_little_is_enough_sends_the_mean_less_z_deviations() -> None:
    honest, sent = forged("alie", z=1.5)
    expected = honest.numpy().mean(axis=0) - 1.5 * honest.numpy().std(axis=0)
    torch.testing.assert_close(sent, torch.from_numpy(np.stack([expected] * 2)), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("malicious", [2, 3, 4])
def test_a_little_is_enough_counts_the_malicious_clients_of_the_cohort(malicious: int) -> None:
    honest, sent = forged("alie", malicious)
    z = alie_z(10, malicious)
    expected = honest.mean(dim=0) - z * honest.std(dim=0, correction=0)
    torch.testing.assert_close(sent, expected.expand_as(sent), rtol=1e-14, atol=1e-15)


def test_the_inner_product_of_the_mean_with_the_honest_mean_turns_negative() -> None:
    """Xie et al.: with epsilon above (n - f) / f the mean of all points the other way."""
    honest, sent = forged("inner_product", epsilon=4.5)
    mean = honest.mean(dim=0)
    assert float(torch.cat([honest, sent]).mean(dim=0) @ mean) < 0
    below, sent = forged("inner_product", epsilon=3.5)
    assert float(torch.cat([below, sent]).mean(dim=0) @ mean) > 0


@pytest.mark.parametrize("perturbation", ["std", "unit", "sign"])
def test_min_max_goes_as_far_as_two_honest_clients_are_apart(perturbation: str) -> None:
    honest, sent = forged("min_max", perturbation=perturbation)
    reached = torch.cdist(sent[:1], honest).max()
    torch.testing.assert_close(reached, torch.cdist(honest, honest).max(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("perturbation", ["std", "unit", "sign"])
def test_min_sum_goes_as_far_as_the_farthest_honest_client_is_from_all(perturbation: str) -> None:
    honest, sent = forged("min_sum", perturbation=perturbation)
    reached = torch.cdist(sent[:1], honest).square().sum()
    expected = torch.cdist(honest, honest).square().sum(dim=1).max()
    torch.testing.assert_close(reached, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["alie", "inner_product", "min_max", "min_sum"])
def test_knowing_clients_without_honest_ones_use_their_own_changes(kind: str) -> None:
    _, sent = forged(kind, malicious=10)
    assert bool(sent.isfinite().all())


def images(clients: int = 4, each: int = 6) -> FederatedData:
    count = clients * each
    features = torch.rand(count, 1, 5, 5, generator=torch.Generator().manual_seed(2))
    samples = Samples(features, torch.arange(count) % 3)
    data = UndividedDataset(samples, Samples(features[:9], torch.arange(9) % 3), "generated")
    return divide(data, np.split(np.arange(count), clients))


def test_flipped_labels_are_those_of_malicious_clients_alone() -> None:
    data = images()
    labels = attack("label_flipping", original=1, target=2).poison(data, np.array([1, 3]), 3, 0)
    before, after = data.dataset.train.labels, labels.dataset.train.labels
    for client in range(4):
        own = data.rows(client)
        expected = torch.where(before[own] == 1, 2, before[own]) if client in (1, 3) else before[own]
        assert torch.equal(after[own], expected)
    mirrored = attack("label_flipping").poison(data, np.array([0]), 3, 0).dataset.train.labels
    assert torch.equal(mirrored[data.rows(0)], 2 - before[data.rows(0)])


def test_a_backdoor_marks_its_share_of_the_images_of_malicious_clients() -> None:
    data = images()
    found = attack("backdoor", target=0, size=2, poisoned=0.5).poison(data, np.array([2]), 3, 7)
    before, after = data.dataset.train, found.dataset.train
    changed = (after.features != before.features).flatten(1).any(dim=1)
    rows = torch.nonzero(changed)[:, 0]
    assert len(rows) == 3
    assert set(rows.tolist()) <= set(data.rows(2).tolist())
    assert after.labels[rows].tolist() == [0, 0, 0]
    assert torch.equal(after.labels[~changed], before.labels[~changed])
    brightest = before.features[data.rows(2)].max()  # the client's own: it does not know others
    assert bool((after.features[rows, :, 3:, 3:] == brightest).all())
    assert torch.equal(after.features[rows, :, :3], before.features[rows, :, :3])


def test_a_backdoor_is_tested_on_marked_images_of_other_classes() -> None:
    test = images().dataset.test
    wanted = attack("backdoor", target=0, size=2).wanted(test, 3)
    assert wanted is not None
    assert len(wanted) == 6
    assert wanted.labels.tolist() == [0] * 6
    assert bool((wanted.features[:, :, 3:, 3:] == test.features.max()).all())


def test_malicious_clients_are_the_same_for_every_algorithm_and_attack() -> None:
    drawn = {tuple(attack(kind, share=0.25).clients(3, 40)) for kind in ("alie", "sign_flipping")}
    assert len(drawn) == 1
    assert len(next(iter(drawn))) == 10
    assert tuple(attack("alie", share=0.25).clients(4, 40)) not in drawn


def rows_of(base: Document, **fields: Any) -> list[dict[str, Any]]:
    simulation = Simulation(specification(base, **fields), 1)
    reports = [simulation.advance() for _ in range(simulation.spec.rounds)]
    return [
        {"loss": report.train_loss, "bytes": report.bytes_up, "steps": report.local_steps, **report.extra}
        for report in reports
    ]


def attacked(kind: str, share: float = 0.25, **fields: Any) -> Document:
    return {"attack": {"kind": kind, "share": share, **fields}}


SMALL: Document = {**SYNTHETIC, "rounds": 3, "participation": {"kind": "full"}, "systems": {}}


def test_an_attack_changes_neither_clients_nor_batches_nor_traffic() -> None:
    plain, other = (rows_of(SMALL, systems=systems) for systems in ({}, attacked("sign_flipping", scale=3.0)))
    for name in ("bytes", "steps"):
        assert [row[name] for row in plain] == [row[name] for row in other]
    assert plain[-1]["loss"] != other[-1]["loss"]


class Idle(Attack):
    """Malicious clients that send what they computed."""

    kind: Literal["idle"] = "idle"

    def forges(self) -> bool:
        return True

    def forge(self, deltas: Tensor, malicious: Tensor, rng: Generator) -> Tensor:
        return deltas.clone()


@pytest.mark.parametrize(
    "kind", ["sign_flipping", "gaussian_noise", "alie", "inner_product", "min_max", "min_sum"]
)
def test_where_nothing_travels_there_is_nothing_to_forge(kind: str) -> None:
    """All layers are personal: the server stays where it began, and nothing is computed of no numbers."""
    simulation = Simulation(
        specification(SMALL, algorithm={"kind": "fedper", "head": 1}, systems=attacked(kind)), 1
    )
    first = simulation.model()
    while not simulation.finished:
        simulation.advance()
    assert all(torch.equal(value, first[name]) for name, value in simulation.model().items())


def test_malicious_clients_that_forge_nothing_change_nothing() -> None:
    plain, other = (rows_of(SMALL, systems=systems) for systems in ({}, {"attack": Idle(share=0.5)}))
    assert [row["loss"] for row in other] == pytest.approx([row["loss"] for row in plain], rel=1e-12)


@pytest.mark.parametrize(
    "attack", [{"kind": "alie"}, {"kind": "gaussian_noise", "std": 0.1}, {"kind": "label_flipping"}]
)
@pytest.mark.parametrize("aggregator", [{"kind": "mean"}, {"kind": "median"}])
def test_engines_agree_under_attack(attack: Document, aggregator: Document) -> None:
    runs.engines_agree(
        lambda **changes: specification(
            SMALL, aggregator=aggregator, systems={"attack": {"share": 0.25, **attack}}, **changes
        )
    )


def test_the_median_of_equal_clients_outvotes_any_minority() -> None:
    """Honest clients of one objective send one change, which is then the median."""
    client = {"H": [[1.0, 0.2], [0.2, 0.5]], "e": [1.0, -1.0]}
    problem = {"dataset": {"kind": "quadratic", "clients": [client] * 9, "x0": [5.0, 5.0]}}
    base = {**QUADRATIC, "problem": problem, "systems": {}, "evaluation": {}}
    systems = attacked("sign_flipping", share=0.34, scale=5.0)
    honest, median, mean = (
        rows_of(base, **changes)[-1]["loss"]
        for changes in ({}, {"systems": systems, "aggregator": {"kind": "median"}}, {"systems": systems})
    )
    assert median == pytest.approx(honest, rel=1e-12)
    assert mean > honest + 1


def test_measures_tell_honest_clients_from_malicious_ones() -> None:
    names = {"distance_to_honest_mean", "honest_client_accuracy", "attack_success_rate"}
    evaluation = {"measures": ["train_loss", *sorted(names)]}
    forged = rows_of(SMALL, systems=attacked("inner_product", epsilon=1.0), evaluation=evaluation)
    assert all(row.keys() & names == names - {"attack_success_rate"} for row in forged)
    assert all(row["distance_to_honest_mean"] > 0 for row in forged)
    assert not rows_of(SMALL, evaluation=evaluation)[-1].keys() & names


def test_the_aggregate_of_the_honest_is_at_no_distance_from_their_mean() -> None:
    """With the changes of malicious clients times 0, the mean is (1 - W) times that of the others,
    where W is the weight of the malicious.
    """
    evaluation = {"measures": ["train_loss", "distance_to_honest_mean"]}
    base = {**SMALL, "participation": {"kind": "full", "weighting": "uniform"}, "rounds": 1}
    simulation = Simulation(
        specification(base, systems=attacked("inner_product", epsilon=1e-300), evaluation=evaluation), 1
    )
    before = simulation.state.server.x.clone()
    row = simulation.advance()
    move = float((simulation.state.server.x - before).norm())
    # direction = (6/8) honest mean: the distance is a third of the direction's length.
    assert row.extra["distance_to_honest_mean"] == pytest.approx(move / 3, rel=1e-9)


def test_a_backdoor_is_learnt_by_the_mean_of_many_malicious_clients() -> None:
    base = {
        **DIGITS,
        "rounds": 12,
        "evaluation": {"measures": ["train_loss", "test_accuracy", "attack_success_rate"]},
    }
    rows = rows_of(base, systems=attacked("backdoor", share=0.5, target=0, size=3))
    assert rows[-1]["attack_success_rate"] > 0.5


@pytest.mark.parametrize(
    ("attack", "field"),
    [
        ({"kind": "alie", "share": 0.01}, "share"),
        ({"kind": "label_flipping", "original": 99, "target": 1, "share": 0.5}, "original"),
        ({"kind": "label_flipping", "original": 1, "target": 99, "share": 0.5}, "target"),
        ({"kind": "backdoor", "target": 1, "share": 0.5}, "attack"),
    ],
)
def test_attacks_that_do_not_fit_the_data_name_their_field(attack: Document, field: str) -> None:
    with pytest.raises(SpecificationError, match=f"/systems/attack.*{field}|{field}.*images"):
        specification(SMALL, systems={"attack": attack})
