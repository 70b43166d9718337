"""DP-FedAvg: rounds written out by hand, what one client can change, and limit cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedcore.core import Cohort
from fedcore.privacy import PRIVACY, PrivateRun
from fedcore.privacy.client_level import ClippingUpdate, PrivateMean, clip, noise_of_changes
from fedcore.random import generator
from fedcore.simulation.simulation import Simulation
from fedcore.systems.cohorts import draw
from fedcore.systems.participation import Full
from tests.builders.specifications import QUADRATIC, SYNTHETIC, Document, quadratics, specification

DIM, CLIENTS = 5, 8


def cohort(count: int) -> Cohort:
    ones = torch.ones(count, dtype=torch.float64)
    return Cohort(
        clients=torch.arange(count),
        weights=ones / max(count, 1),
        share=ones / max(count, 1),
        objective=ones / max(count, 1),
        population=CLIENTS,
        steps=ones,
        normaliser=ones,
    )


def changes(count: int = CLIENTS, scale: float = 3.0) -> Tensor:
    drawn = torch.Generator().manual_seed(count)
    return scale * torch.randn(count, DIM, generator=drawn, dtype=torch.float64)


def private(**fields: object) -> Document:
    return {"kind": "client_level", **fields}


QUIET = {"privacy": private(noise_multiplier=0.0, clip_norm=1e6)}
EQUAL = {"kind": "full", "weighting": "uniform"}
SAMPLED = {"kind": "bernoulli", "probability": 0.4, "weighting": "uniform"}


@given(
    replaced=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=DIM, max_size=DIM),
    row=st.integers(0, CLIENTS - 1),
    norm=st.floats(1e-3, 1e3),
)
def test_client_changes_the_sum_by_no_more_than_the_clipping_norm(
    replaced: list[float], row: int, norm: float
) -> None:
    """The sensitivity under adding or removing a client, whatever it sends."""
    with_one = changes()
    with_one[row] = torch.tensor(replaced, dtype=torch.float64)
    without = torch.cat([with_one[:row], with_one[row + 1 :]])
    distance = float((clip(with_one, norm).sum() - clip(without, norm).sum()).norm())
    assert distance <= norm * (1 + 1e-9)


def test_rounds_are_those_of_the_paper_written_out() -> None:
    """McMahan et al., DP-FedAvg with flat clipping and the fixed denominator q N, on quadratics."""
    clients, x = quadratics(CLIENTS), np.array([1.0, -2.0, 0.5])
    document = {
        **QUADRATIC,
        "problem": {"dataset": {**QUADRATIC["problem"]["dataset"], "clients": clients}},
        "participation": SAMPLED,
        "privacy": private(noise_multiplier=0.7, clip_norm=0.3),
        "systems": {},
    }
    simulation, scheme = Simulation(specification(document), 3), specification(document).participation
    share = np.array([client["weight"] for client in clients])
    for round in range(1, 9):
        total = np.zeros(3)
        for i in draw(scheme, share / share.sum(), 3, round).clients:
            y = x.copy()
            for _ in range(5):
                y -= 0.05 * (np.array(clients[i]["H"]) @ y - np.array(clients[i]["e"]))
            total += (y - x) * min(1.0, 0.3 / np.linalg.norm(y - x))
        noise = 0.7 * 0.3 * generator(3, "privacy noise", round).standard_normal(3)
        x = x + (total + noise) / (0.4 * CLIENTS)
        report = simulation.advance()
        np.testing.assert_allclose(report.extra["x"], x, rtol=1e-12, atol=1e-13)


def test_without_noise_and_clipping_it_is_fedavg_with_equal_weights() -> None:
    runs = []
    for changed in (QUIET, {}):
        simulation = Simulation(specification(SYNTHETIC, participation=EQUAL, systems=None, **changed), 1)
        while not simulation.finished:
            simulation.advance()
        runs.append(simulation.model())
    for name, expected in runs[1].items():
        torch.testing.assert_close(runs[0][name], expected, rtol=1e-12, atol=1e-13)


def test_an_empty_cohort_sends_noise_like_any_other() -> None:
    """That nobody was drawn must not show in the model."""
    document = {**QUADRATIC, "participation": {**SAMPLED, "probability": 1e-9}, "systems": {}}
    simulation = Simulation(specification(document, privacy=private(noise_multiplier=1.0)), 0)
    report = simulation.advance()
    noise = generator(0, "privacy noise", 1).standard_normal(3)
    expected = np.array([1.0, -2.0, 0.5]) + noise / (1e-9 * 4)
    assert report.local_steps == 0
    np.testing.assert_allclose(report.extra["x"], expected, rtol=1e-12)


def test_noise_has_the_deviation_that_is_accounted_for() -> None:
    """z C / m in each coordinate, of rounds that do not share it."""
    mean = PrivateMean(clip_norm=2.0, noise_multiplier=1.5, expected=10.0)
    nothing = torch.zeros(4, 20_000, dtype=torch.float64)
    first, second = (mean.of_round(5, round).combine(nothing, cohort(4), {}).direction for round in (1, 2))
    assert float(first.std()) == pytest.approx(1.5 * 2.0 / 10, rel=5 / 200)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / 20_000**0.5


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_the_clipping_norm_converges_to_the_quantile(quantile: float) -> None:
    """Andrew et al.: from 50 times below, of norms between 1 and 101."""
    update = ClippingUpdate(quantile, 0.2, 1e-3, 101.0)
    seen = clip(torch.arange(1.0, 102.0, dtype=torch.float64)[:, None], 1.0)
    norm, none = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.0)
    for _ in range(300):
        norm = update.next(norm, seen, none)
    assert float(norm) == pytest.approx(100 * quantile + 1, rel=0.05)


def test_adaptive_clipping_is_the_algorithm_of_the_paper_written_out() -> None:
    """Andrew et al.: one round of 8 changes, of which the noise is known."""
    privacy = PRIVACY.validate(
        private(
            noise_multiplier=0.5,
            clip_norm=4.0,
            adaptive_clipping={"quantile": 0.3, "lr": 0.7, "count_noise": 0.6},
        )
    )
    mean = privacy.aggregator(PrivateMean(1, 1, 1), PrivateRun(Full(kind="full"), CLIENTS, 3))
    seen = changes()
    found = mean.of_round(2, 3).combine(seen, cohort(CLIENTS), mean.start(seen[0]))
    norms = np.linalg.norm(seen.numpy(), axis=1)
    z_delta = (0.5**-2 - 1.2**-2) ** -0.5
    noise = z_delta * 4.0 * generator(2, "privacy noise", 3).standard_normal(DIM)
    expected = (np.minimum(1, 4.0 / norms) @ seen.numpy() + noise) / CLIENTS
    counted = (norms <= 4.0).sum() + 0.6 * generator(2, "noise of the count", 3).standard_normal()
    np.testing.assert_allclose(found.direction, expected, rtol=1e-13, atol=1e-15)
    norm = 4.0 * np.exp(-0.7 * (counted / CLIENTS - 0.3))
    assert float(found.aggregator_state["clip_norm"]) == pytest.approx(norm, rel=1e-13)


@given(z=st.floats(0.01, 10), extra=st.floats(1.001, 100))
def test_changes_and_count_together_cost_what_the_noise_multiplier_costs(z: float, extra: float) -> None:
    """Two Gaussian mechanisms of ratios a and b are one of (a^-2 + b^-2)^(-1/2); the count moves by
    1/2.
    """
    count_noise = extra * z / 2
    together = noise_of_changes(z, count_noise) ** -2 + (count_noise / 0.5) ** -2
    assert together**-0.5 == pytest.approx(z, rel=1e-9)


def test_the_clipping_norm_of_a_resumed_run_continues() -> None:
    spec = specification(
        SYNTHETIC,
        participation=EQUAL,
        systems=None,
        privacy=private(noise_multiplier=0.1, adaptive_clipping={}),
    )
    whole, resumed = Simulation(spec, 2), Simulation(spec, 2)
    reports = [whole.advance() for _ in range(4)]
    resumed.advance()
    other = Simulation(spec, 2)
    other.restore(resumed.checkpoint())
    for expected in reports[1:]:
        assert other.advance().extra == expected.extra
    assert len({report.extra["clip_norm"] for report in reports}) == 4
