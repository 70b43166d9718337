"""Attacks: mechanisms keep to their trade-off curves, and faults do not."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from fedcore import ExperimentSpec
from fedcore.core import Aggregate
from fedcore.privacy import PRIVACY, PrivateRun
from fedcore.privacy.accounting import GaussianRelease
from fedcore.privacy.base import GRADIENT
from fedcore.privacy.client_level import PrivateMean
from fedcore.privacy.tree import TreeMean
from fedcore.simulation.simulation import Simulation
from fedcore.systems.participation import PARTICIPATIONS
from tests.builders.specifications import Document
from tests.testing.privacy.attacks import AttackErrors, Mechanism, TradeOff, attack, upper_limit
from tests.testing.privacy.test_coupled import BASE, private

Floats = NDArray[np.float64]
QUICK, NIGHTLY = (250, 500), (1_000, 2_000)
"""Runs in each world that choose the attack, and that judge."""


def mechanism(z: float, kind: str, scheme: str, clients: int, rounds: int, /, **fields: Any) -> Mechanism:
    """One whose moves are together about as large as their noise."""
    adaptive: Document = {"adaptive_clipping": {}} if fields.pop("adaptive", False) else {}
    participation = {"kind": scheme, "weighting": "uniform", **fields}
    run = PrivateRun(PARTICIPATIONS.validate(participation), clients, rounds)
    return Mechanism(PRIVACY.validate({"kind": kind, "noise_multiplier": z, **adaptive}), run)


CELLS: dict[str, Mechanism] = {
    "full, a round": mechanism(1.0, "client_level", "full", 2, 1),
    "full, rounds": mechanism(1.7, "client_level", "full", 2, 3),
    "full, adaptive, a round": mechanism(1.0, "client_level", "full", 2, 1, adaptive=True),
    "full, adaptive, rounds": mechanism(1.7, "client_level", "full", 2, 3, adaptive=True),
    "bernoulli, a round": mechanism(0.5, "client_level", "bernoulli", 2, 1, probability=0.5),
    "bernoulli, rounds": mechanism(0.7, "client_level", "bernoulli", 2, 4, probability=0.5),
    "bernoulli, rare": mechanism(0.3, "client_level", "bernoulli", 2, 1, probability=0.2),
    "bernoulli, rare rounds": mechanism(0.5, "client_level", "bernoulli", 2, 4, probability=0.2),
    "bernoulli, adaptive, a round": mechanism(
        0.5, "client_level", "bernoulli", 2, 1, probability=0.5, adaptive=True
    ),
    "bernoulli, adaptive, rounds": mechanism(
        0.7, "client_level", "bernoulli", 2, 4, probability=0.5, adaptive=True
    ),
    "uniform, a round": mechanism(0.8, "client_level", "uniform", 2, 1, clients_per_round=1),
    "uniform, rounds": mechanism(1.5, "client_level", "uniform", 4, 3, clients_per_round=2),
    "uniform, all": mechanism(2.0, "client_level", "uniform", 2, 1, clients_per_round=2),
    "uniform, adaptive": mechanism(1.0, "client_level", "uniform", 2, 2, clients_per_round=1, adaptive=True),
    "tree, a round": mechanism(1.0, "dp_ftrl", "full", 2, 1),
    "tree, full": mechanism(3.0, "dp_ftrl", "full", 2, 5),
    "tree, cyclic": mechanism(2.0, "dp_ftrl", "cyclic", 4, 5, clients_per_round=2),
    "tree, trace": mechanism(2.0, "dp_ftrl", "trace", 2, 4, rounds=[[0, 1], [0], [1], [0, 1]]),
    "local, a round": mechanism(2.0, "local", "full", 1, 1),
    "local, rounds": mechanism(3.0, "local", "full", 1, 3),
    "local, trace": mechanism(3.0, "local", "trace", 2, 4, rounds=[[0, 1], [0], [1], [0, 1]]),
    "local, cyclic": mechanism(3.0, "local", "cyclic", 2, 4, clients_per_round=1),
}
"""By sampling that the accountant knows; `example_level` makes 24 of them."""
QUICK_CELLS = ("full, a round", "bernoulli, a round", "tree, cyclic", "local, a round")


def verdict(audited: Mechanism, runs: tuple[int, int]) -> AttackErrors:
    """The attack on a mechanism against what it accounts for."""
    privacy, run = audited.privacy, audited.run
    return judged(audited, *privacy.releases(privacy.noise(run), run, run.rounds), runs)


def judged(audited: Mechanism, release: GaussianRelease, count: int, runs: tuple[int, int]) -> AttackErrors:
    return attack(
        lambda seed, number, there: audited.histories(seed, number, present=there), release, count, runs
    )


@pytest.mark.parametrize("cell", QUICK_CELLS)
def test_attacks_on_four_mechanisms_do_no_better_than_is_accounted_for(cell: str) -> None:
    found = verdict(CELLS[cell], (150, 350))
    assert not found.refuted, found


@pytest.mark.nightly
@pytest.mark.parametrize("cell", CELLS)
def test_attacks_do_no_better_than_is_accounted_for(cell: str) -> None:
    found = verdict(CELLS[cell], NIGHTLY)
    assert not found.refuted, found


def sample_histories(document: Document, seeds: range, *, present: bool) -> Floats:
    """[runs, rounds x steps] of a client of one step in an epoch: what its model moves by, over the noise."""
    simulation = Simulation(ExperimentSpec.model_validate(document), 0)
    start, setting = simulation.checkpoint(), simulation.context
    problem, privacy = setting.problem, simulation.spec.privacy
    assert privacy is not None
    sent = torch.zeros(problem.dim, dtype=torch.float64)
    sent[0] = privacy.clip_norm / 2 if present else 0.0
    problem.gradient = lambda *_: sent.clone()  # type: ignore[method-assign]
    deviation = privacy.released(PrivateRun(simulation.spec.participation, 1, 1), {})[GRADIENT].deviation
    found = []
    for seed in seeds:
        simulation.restore(start)
        simulation.context = replace(setting, seed=seed)
        before, moved = simulation.state.server.x.clone(), []
        while not simulation.finished:
            simulation.advance()
            moved.append(float((before - simulation.state.server.x)[0]) * 2 / deviation)
            before = simulation.state.server.x.clone()
        found.append(moved)
    return np.array(found)


@pytest.mark.nightly
@pytest.mark.parametrize(("epochs", "z"), [(1, 1.0), (3, 1.7)])
def test_attacks_on_a_sample_do_no_better_than_is_accounted_for(epochs: int, z: float) -> None:
    """One client of two samples, which are a mini-batch: an epoch is a step."""
    document = {
        **BASE,
        "problem": {
            "dataset": {"kind": "digits"},
            "partition": {"kind": "iid", "clients": 1, "hold_out": 0.9985},
            "model": {"kind": "logistic"},
        },
        "local": {"lr": 1.0, "epochs": epochs, "batch_size": 2},
        "rounds": 1,
        "execution": {"precision": "float64", "engine": "reference"},
        **private("example_level", noise_multiplier=z),
    }
    spec = ExperimentSpec.model_validate(document)
    assert spec.privacy is not None
    release, count = spec.privacy.releases(z, PrivateRun(spec.participation, 1, 1, epochs), 1)

    def histories(seed: int, runs: int, there: bool) -> Floats:
        return sample_histories(document, range(seed, seed + runs), present=there)

    assert not attack(histories, release, count, NIGHTLY).refuted


# Faults that are planted.


class Doubled(PrivateMean):
    """Counts every client twice."""

    def combine(self, seen: Any, cohort: Any, aggregator_state: Any) -> Aggregate:
        combined, alone = (
            PrivateMean.combine(self, changes, cohort, aggregator_state)
            for changes in (seen, torch.zeros_like(seen))
        )
        return replace(combined, direction=2 * combined.direction - alone.direction)


class DoubledTree(Doubled, TreeMean):
    pass


class HalfNoise(PrivateMean):
    def noise(self, like: Any) -> Any:
        return super().noise(like) / 2


class OneNoise(PrivateMean):
    def of_round(self, seed: int, round: int) -> PrivateMean:
        return replace(self, seed=seed, round=1)


def faulty(audited: Mechanism, fault: type[Any]) -> Mechanism:
    """The mechanism with another aggregator, or what clients do, of the same fields."""
    base: type[Any] = type(audited.privacy)

    def put(right: Any) -> Any:
        if not issubclass(fault, type(right)):
            return right
        return fault(**{part.name: getattr(right, part.name) for part in fields(right)})

    class Faulty(base):  # type: ignore[misc]
        def aggregator(self, within: Any, run: Any) -> Any:
            return put(super().aggregator(within, run))

        def randomiser(self, run: Any) -> Any:
            return put(super().randomiser(run))

    return replace(audited, privacy=Faulty.model_validate(audited.privacy.model_dump()))


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        ("full, a round", Doubled),
        ("full, a round", HalfNoise),
        pytest.param("bernoulli, a round", Doubled, marks=pytest.mark.nightly),
        pytest.param("bernoulli, rounds", HalfNoise, marks=pytest.mark.nightly),
        pytest.param("uniform, all", Doubled, marks=pytest.mark.nightly),
        pytest.param("full, rounds", OneNoise, marks=pytest.mark.nightly),
        pytest.param("tree, full", DoubledTree, marks=pytest.mark.nightly),
    ],
)
def test_a_fault_lets_an_attack_do_better(cell: str, fault: type[Any]) -> None:
    assert verdict(faulty(CELLS[cell], fault), (250, 500)).refuted


def test_amplification_by_sampling_that_does_not_take_place_is_found() -> None:
    """The accountant counts on a fifth of the clients, and all take part."""
    audited = mechanism(0.7, "client_level", "full", 2, 1)
    claimed = GaussianRelease(0.7, 1, 5)
    assert judged(audited, claimed, 1, (150, 350)).refuted


def test_noise_that_is_used_in_every_round_is_found() -> None:
    assert verdict(faulty(mechanism(1.4, "client_level", "full", 2, 2), OneNoise), (150, 350)).refuted


@pytest.mark.parametrize("z", [0.5, 1.0, 3.0])
def test_the_trade_off_of_one_gaussian_release_is_that_of_two_normal_distributions(z: float) -> None:
    """Dong, Roth and Su: Phi(Phi^-1(1 - alpha) - mu)."""
    curve = TradeOff(GaussianRelease(z), 1)
    for alpha in (0.001, 0.05, 0.3, 0.7):
        expected = stats.norm.cdf(stats.norm.isf(alpha) - 1 / z)
        assert curve(alpha) == pytest.approx(expected, abs=0.003)
        assert curve(alpha) <= expected + 1e-6


def test_an_upper_limit_is_that_of_clopper_and_pearson() -> None:
    """It is the probability under which so few events are as rare as the level."""
    limit = upper_limit(3, 50, 0.01)
    assert stats.binom.cdf(3, 50, limit) == pytest.approx(0.01, rel=1e-6)
    assert upper_limit(5, 5) == 1.0
