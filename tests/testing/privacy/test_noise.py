"""The noise of mechanisms: normal, of the declared size and used once; and faults of it that are found."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedcore import ExperimentSpec
from fedcore.core import Aggregate
from fedcore.engine.assignment import AggregatedUpdate
from fedcore.privacy import PRIVACY, Privacy, PrivateRun
from fedcore.privacy.client_level import PrivateMean, clip
from fedcore.privacy.local import NoisyChanges
from fedcore.privacy.tree import TreeMean
from fedcore.random import generator
from fedcore.simulation.simulation import Simulation
from fedcore.systems.participation import PARTICIPATIONS
from fedcore.testing.privacy.noise import examine, noise_findings
from tests.testing.privacy.attacks import Mechanism
from tests.testing.privacy.test_attacks import HalfNoise, OneNoise, faulty
from tests.testing.privacy.test_coupled import BASE, private
from tests.testing.test_combinations import FAMILIES, document, with_needs


def of_catalogue(kind: str, **fields: Any) -> Privacy:
    block = document(with_needs({"privacy": kind}))["privacy"]
    return PRIVACY.validate({**block, **fields})


AGGREGATING = [kind for kind in FAMILIES["privacy"] if not of_catalogue(kind).clips_samples]
RUN = PrivateRun(PARTICIPATIONS.validate({"kind": "full", "weighting": "uniform"}), 3, 6)


@pytest.mark.parametrize("kind", AGGREGATING)
def test_noise_is_normal_of_the_declared_size_and_used_once(kind: str) -> None:
    assert noise_findings(of_catalogue(kind), RUN) == []


class OneCountNoise(PrivateMean):
    """Has the noise of the direction in the count, too."""

    def combine(self, seen: Any, cohort: Any, aggregator_state: Any) -> Aggregate:
        assert self.clipping is not None
        combined = super().combine(seen, cohort, aggregator_state)
        drawn = self.noise(seen.new_empty(seen.shape[1]))[0] / self.noise_multiplier
        norm = aggregator_state["clip_norm"]
        count = self.clipping.next(norm, clip(seen, norm), drawn)
        return replace(combined, aggregator_state={"clip_norm": count})


class CountWithoutNoise(PrivateMean):
    def combine(self, seen: Any, cohort: Any, aggregator_state: Any) -> Aggregate:
        assert self.clipping is not None
        combined = super().combine(seen, cohort, aggregator_state)
        norm = aggregator_state["clip_norm"]
        count = self.clipping.next(norm, clip(seen, norm), torch.zeros(()))
        return replace(combined, aggregator_state={"clip_norm": count})


class FirstC(PrivateMean):
    """Scales the noise by the first C, whatever C is now."""

    def combine(self, seen: Any, cohort: Any, aggregator_state: Any) -> Aggregate:
        combined = super().combine(seen, cohort, aggregator_state)
        difference = self.clip_norm - aggregator_state["clip_norm"]
        noise = difference * self.noise(seen.new_empty(seen.shape[1]))
        return replace(combined, direction=combined.direction + noise / self.expected)


class WithoutLevels(TreeMean):
    """Draws the noise of nodes by their number alone."""

    def _node(self, like: Any, level: int, number: int) -> Any:
        return super()._node(like, 0, number)


class OneNoiseForAll(NoisyChanges):
    def privatise(self, changes: Any, clients: Any, seed: int, round: int) -> Any:
        return super().privatise(changes, torch.zeros_like(clients), seed, round)


class HalfNoisyChanges(NoisyChanges):
    def privatise(self, changes: Any, clients: Any, seed: int, round: int) -> Any:
        less = NoisyChanges(self.clip_norm, self.noise_multiplier / 2)
        return less.privatise(changes, clients, seed, round)


class OneNoisePerClient(NoisyChanges):
    """Draws the same noise in every round."""

    def privatise(self, changes: Any, clients: Any, seed: int, round: int) -> Any:
        return super().privatise(changes, clients, seed, 1)


class OneSeed(NoisyChanges):
    def privatise(self, changes: Any, clients: Any, seed: int, round: int) -> Any:
        return super().privatise(changes, clients, 0, round)


@pytest.mark.parametrize(
    ("kind", "fault", "told"),
    [
        ("client_level", HalfNoise, "times the declared deviation"),
        ("client_level", OneNoise, "correlated"),
        ("client_level", FirstC, "times the declared deviation"),
        ("client_level", OneCountNoise, "correlated"),
        ("client_level", CountWithoutNoise, "noise of clip_norm"),
        ("dp_ftrl", WithoutLevels, "noise"),
        ("local", OneNoiseForAll, "correlated"),
        ("local", HalfNoisyChanges, "times the declared deviation"),
        ("local", OneNoisePerClient, "correlated"),
        ("local", OneSeed, "the same noise under another seed"),
    ],
)
def test_a_fault_of_the_noise_is_found(kind: str, fault: type[Any], told: str) -> None:
    found = noise_findings(faulty(Mechanism(of_catalogue(kind), RUN), fault).privacy, RUN)
    assert told in "; ".join(found)


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_gradients_of_samples_have_noise_of_the_declared_size_in_each_step(engine: str, epochs: int) -> None:
    """Steps of one sample whose gradient is clipped to nothing leave noise alone."""
    document = {
        **BASE,
        "problem": {**BASE["problem"], "partition": {"kind": "iid", "clients": 3, "hold_out": 0.99}},
        "local": {"lr": 1.0, "epochs": epochs, "batch_size": 6},
        "execution": {"precision": "float64", "engine": engine},
        **private("example_level", clip_norm=1e-6, noise_multiplier=1e6),
    }
    simulation = Simulation(ExperimentSpec.model_validate(document), 0)
    found = []
    while not simulation.finished:
        opened = simulation.begin()
        assert opened.job is not None
        (result,) = opened.flow.context.engine([replace(opened.job, each=True)])
        deltas = result.deltas if isinstance(result, AggregatedUpdate) else result.delta
        assert deltas is not None
        found += list((deltas * 6 / epochs**0.5).numpy())
        simulation.advance()
    assert list(examine("gradients", np.array(found))) == []


def test_noise_that_is_correlated_or_not_normal_is_told() -> None:
    drawn = generator(0, "a test").standard_normal((3, 4_000))
    assert list(examine("noise", drawn)) == []
    assert "0.498 times" in "; ".join(examine("noise", drawn / 2))
    assert "used more than once" in "; ".join(examine("noise", drawn[[0, 1, 0]]))
    assert "coordinate to coordinate" in "; ".join(examine("noise", (drawn[:, 1:] + drawn[:, :-1]) / 2**0.5))
