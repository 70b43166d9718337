"""Local noise: changes written out by hand, and what the stages after it are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedcore import Simulation
from fedcore.engine.stages.base import Flow, RoundState
from fedcore.engine.stages.privatise import PrivatiseChanges
from fedcore.engine.stages.train import after_training
from fedcore.privacy.local import NoisyChanges
from fedcore.random import generator
from tests.builders.specifications import Document, merged, specification
from tests.privacy.test_client_level import CLIENTS, DIM, changes

C, Z, SEED = 0.5, 2.0, 3
LOCAL: Document = {
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 5, "hold_out": 0.9},
        "model": {"kind": "mlp", "hidden": [4]},
    },
    # Clients hardly move, so that what they send is noise.
    "local": {"lr": 1e-12, "epochs": 1, "batch_size": 10},
    "participation": {"kind": "full", "weighting": "uniform"},
    "privacy": {"kind": "local", "clip_norm": C, "noise_multiplier": Z},
    "rounds": 2,
    "evaluation": {"measures": []},
    "execution": {"precision": "float64", "engine": "reference"},
}
Floats = NDArray[np.float64]


def test_each_change_is_clipped_and_noisy() -> None:
    given = changes()
    sent = NoisyChanges(2.0, 0.5).privatise(given, torch.arange(CLIENTS), 4, 6)
    for client, change, message in zip(range(CLIENTS), given.numpy(), sent.numpy(), strict=True):
        noise = generator(4, "local privacy noise", 6, client).standard_normal(DIM)
        expected = change * min(1.0, 2.0 / np.linalg.norm(change)) + 0.5 * 2.0 * noise
        np.testing.assert_allclose(message, expected, rtol=1e-12, atol=1e-14)


def run_of(**given: Any) -> Simulation:
    return Simulation(
        specification(merged(merged({"name": "a run", **LOCAL}, {"algorithm": {"kind": "fedavg"}}), given)),
        SEED,
    )


def noise_of(round: int, dim: int) -> Floats:
    """[5, D] the noise of the clients' messages."""
    drawn = [
        generator(SEED, "local privacy noise", round, client).standard_normal(dim) for client in range(5)
    ]
    return C * Z * np.array(drawn)


def largest(messages: Floats, k: int) -> Floats:
    """The k largest entries of each message."""
    threshold = np.sort(np.abs(messages), axis=1)[:, -k, None]
    return np.where(np.abs(messages) >= threshold, messages, 0.0)


@pytest.mark.parametrize("kind", ["mean", "median"])
def test_the_server_combines_noisy_changes(kind: str) -> None:
    played = run_of(aggregator={"kind": kind})
    before = played.state.server.x.numpy().copy()
    played.advance()
    noise = noise_of(1, len(before))
    expected = noise.mean(0) if kind == "mean" else np.median(noise, axis=0)
    np.testing.assert_allclose(played.state.server.x.numpy() - before, expected, atol=1e-9)


@pytest.mark.parametrize("feedback", [False, True])
def test_noisy_changes_are_compressed(feedback: bool) -> None:
    """Messages are the largest entries of noisy changes; error feedback adds what they left out."""
    uplink = {"kind": "top_k", "k": 7, "error_feedback": feedback}
    played = run_of(compression={"uplink": uplink})
    before = played.state.server.x.numpy().copy()
    left_out = np.zeros(len(before))
    for round in (1, 2):
        played.advance()
        meant = left_out + noise_of(round, len(before))
        sent = largest(meant, 7)
        left_out = feedback * (meant - sent)
        after = played.state.server.x.numpy().copy()
        np.testing.assert_allclose(after - before, sent.mean(0), atol=1e-9)
        before = after


@pytest.mark.parametrize("uplink", [{"kind": "none"}, {"kind": "top_k", "k": 7, "error_feedback": True}])
def test_clients_remember_what_they_sent_with_its_noise(uplink: Document) -> None:
    """FedDyn: the clients' states agree with the server's, which has seen noisy changes alone."""
    played = run_of(algorithm={"kind": "feddyn", "alpha": 0.1}, compression={"uplink": uplink})
    played.advance()
    kept = played.state.table.gather(np.arange(5))["gradient"].numpy()
    np.testing.assert_allclose(kept, -0.1 * noise_of(1, kept.shape[1]), atol=1e-9)


def test_noise_is_added_to_what_travels_alone() -> None:
    """Noise of entries that stay with the client would count for norms, and move the server's model."""
    played = run_of(algorithm={"kind": "fedper"})
    opened = played.begin()
    assert opened.job is not None
    (result,) = opened.flow.context.engine([opened.job])
    flow = after_training(opened.flow, result)
    stays = flow.context.algorithm.models.stays
    assert stays is not None
    assert 0 < int(stays.sum()) < len(stays)
    _, flow = PrivatiseChanges().play(opened.state, flow)
    assert flow.change is not None
    assert not bool(flow.change[:, stays].any())
    noise = noise_of(1, int((~stays).sum()))
    np.testing.assert_allclose(flow.change[:, ~stays].numpy(), noise, atol=1e-9)


def test_measures_see_what_clients_computed() -> None:
    played = run_of()
    opened = played.begin()
    assert opened.job is not None
    (result,) = opened.flow.context.engine([replace(opened.job, each=True)])
    before = after_training(opened.flow, result)
    after: tuple[RoundState, Flow] = PrivatiseChanges().play(opened.state, before)
    assert after[1].deltas is before.deltas
    assert after[1].trained is not None
    assert after[1].change is after[1].trained.delta
