"""DP-SGD: gradients written out sample by sample, the engines, and what one sample can change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcore.errors import SpecificationError
from fedcore.problems.gradients import SampleClipping
from fedcore.random import generator
from fedcore.simulation.simulation import Simulation
from tests.builders.specifications import DIGITS, Document, merged, specification

PRIVACY: Document = {"kind": "example_level", "noise_multiplier": 0.8, "clip_norm": 0.5}
DOCUMENT = merged(
    DIGITS,
    {
        "problem": {"dataset": {"kind": "digits"}, "model": {"kind": "logistic", "l2": 0.1}},
        "local": {"lr": 0.1, "epochs": 1, "batch_size": 200},
        "participation": {"kind": "full"},
        "privacy": PRIVACY,
        "rounds": 1,
        "execution": {"precision": "float64", "engine": "reference"},
    },
)


def test_a_round_is_dp_sgd_written_out() -> None:
    """Abadi et al., DP-SGD over shuffled batches of softmax regression, by hand."""
    simulation = Simulation(specification(DOCUMENT), 3)
    opened = simulation.begin()
    problem, work = opened.flow.context.problem, opened.flow.work
    assert work is not None
    x = work.local.x.numpy()
    total = np.zeros_like(x)
    for row, client in enumerate(work.clients.tolist()):
        rows = problem.data.rows(client)  # type: ignore[attr-defined]
        train = problem.data.dataset.train  # type: ignore[attr-defined]
        features = np.pad(train.features[rows].flatten(1).numpy(), ((0, 0), (0, 1)), constant_values=1.0)
        labels = np.eye(10)[train.labels[rows].numpy()]
        noise = generator(3, "gradient noise", 1, client).standard_normal((len(work.batches[row]), len(x)))
        y = x.copy()
        for k, batch in enumerate(work.batches[row]):
            summed = np.zeros_like(y)
            for j in batch[batch >= 0]:
                scores = y.reshape(10, 65) @ features[j]
                p = np.exp(scores - scores.max())
                g = np.outer(p / p.sum() - labels[j], features[j]).ravel()
                summed += g * min(1.0, 0.5 / np.linalg.norm(g))
            y -= 0.1 * ((summed + 0.8 * 0.5 * noise[k]) / 200 + 0.1 * y)
        total += problem.share[client] * (y - x)
    simulation.advance()
    found = np.concatenate([part.numpy().ravel() for part in [simulation.state.server.x]])
    np.testing.assert_allclose(found, x + total, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", [{"kind": "mlp", "hidden": [6]}, {"kind": "logistic"}])
@pytest.mark.parametrize("engine", ["parallel", "vectorised"])
def test_engines_agree(model: Document, engine: str) -> None:
    def last(engine: str) -> dict[str, torch.Tensor]:
        document = merged(DOCUMENT, {"problem": {"model": model}, "execution": {"engine": engine}})
        document["problem"]["model"] = model
        simulation = Simulation(specification(document), 3)
        simulation.advance()
        return simulation.model()

    for name, expected in last("reference").items():
        torch.testing.assert_close(last(engine)[name], expected, rtol=1e-9, atol=1e-12)


class Reading(nn.Module):
    """Scores by a layer that depends on the values of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scores(images.flatten(1) * (2 if float(images.mean()) > 0 else 1))
        return scores


def test_a_network_whose_samples_cannot_be_differentiated_alone_is_refused_before_round_1() -> None:
    document = {**DOCUMENT, "problem": {**DOCUMENT["problem"], "model": Reading}}
    with pytest.raises(SpecificationError, match=r"vmap.* cannot differentiate this network") as refused:
        Simulation(specification(document), 3)
    assert refused.value.pointer == "/problem/model"


def test_sample_changes_a_sum_by_no_more_than_the_clipping_norm() -> None:
    clipping = SampleClipping(0.7, 10, 0.0)
    drawn = torch.Generator().manual_seed(1)
    gradients = 5 * torch.randn(6, 4, generator=drawn, dtype=torch.float64)
    weights = torch.ones(6)
    for value in (1e300, float("inf"), float("nan"), 0.0, -3.0):
        other = gradients.clone()
        other[2] = value
        without = torch.cat([other[:2], other[3:]])
        moved = 10 * (clipping.sum(other, weights) - clipping.sum(without, weights[:5])).norm()
        assert float(moved) <= 0.7 * (1 + 1e-12)


def test_without_noise_and_clipping_it_is_sgd_where_batches_are_full() -> None:
    """With 5 clients of 288 samples on average, batches of one sample are all full."""
    quiet = {**PRIVACY, "noise_multiplier": 0.0, "clip_norm": 1e6}
    local = {"lr": 0.01, "epochs": 1, "batch_size": 1}
    found = []
    for privacy in (quiet, None):
        document = merged(DOCUMENT, {"local": local, "execution": {"engine": "vectorised"}})
        document["privacy"] = privacy
        simulation = Simulation(specification(document), 0)
        simulation.advance()
        found.append(simulation.model())
    for name, expected in found[1].items():
        torch.testing.assert_close(found[0][name], expected, rtol=1e-9, atol=1e-12)
