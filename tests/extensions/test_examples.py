"""The mathematics of the example packages, written out by hand."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from fedcore import Simulation, run
from fedcore.core import Cohort
from fedcore.models.module_object import ModuleObject
from fedcore.testing import check_component
from fedq.planning.draws import play_draws
from tests.builders.specifications import DIGITS, QUADRATIC, SYNTHETIC, specification

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "extensions"
NAMES = {
    "our_fedexp": "OurFedexp",
    "our_clipping": "OurClipping",
    "our_power_of_choice": "OurPowerOfChoice",
    "agreement": "Agreement",
    "client_gap": "ClientGap",
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in EXAMPLES.iterdir():
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])


def component(name: str) -> Any:
    return getattr(import_module(name), NAMES[name])


def cohort_of(weights: np.ndarray) -> Cohort:
    count = len(weights)
    ones = torch.ones(count, dtype=torch.float64)
    given = torch.from_numpy(weights)
    return Cohort(torch.arange(count), given, given, given, count, ones, ones)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_each_example_is_a_package_whose_module_is_short() -> None:
    assert {folder.name for folder in EXAMPLES.iterdir()} == set(NAMES)
    for name in NAMES:
        assert len((EXAMPLES / name / f"{name}.py").read_text().splitlines()) < 40, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("agreement", "client_gap") else pytest.mark.nightly)
        for name in NAMES
    ],
)
def test_an_example_passes_the_checks(name: str) -> None:
    assert check_component(component(name)) == []


def test_fedexp_extrapolates_as_far_as_the_changes_differ() -> None:
    deltas, count, epsilon = normal(4, 3), 4, 1e-3
    combined = (
        component("our_fedexp")(epsilon=epsilon)
        .aggregator()
        .combine(torch.from_numpy(deltas), cohort_of(np.full(count, 1 / count)), {})
    )
    mean = sum(deltas) / count
    squares = sum(float(delta @ delta) for delta in deltas)
    eta = max(1.0, squares / (2 * count * (float(mean @ mean) + epsilon)))
    assert eta > 1
    np.testing.assert_allclose(combined.direction.numpy(), eta * mean, rtol=1e-14)


def test_the_example_of_fedexp_is_the_built_in_fedexp() -> None:
    last = [
        [report.extra["x"] for report in run(specification(QUADRATIC, algorithm=algorithm))][-1]
        for algorithm in ({"kind": "fedexp", "epsilon": 0.01}, component("our_fedexp")(epsilon=0.01))
    ]
    np.testing.assert_allclose(last[1], last[0], rtol=1e-13)


def test_clipping_is_around_the_last_rounds_aggregate() -> None:
    aggregator, radius = component("our_clipping")(radius=0.8).build(), 0.8
    weights = np.array([0.5, 0.2, 0.3])
    centre, state = np.zeros(4), aggregator.start(torch.zeros(4, dtype=torch.float64))
    for round in range(3):
        deltas = normal(3, 4, seed=round)
        combined = aggregator.combine(torch.from_numpy(deltas), cohort_of(weights), state)
        moved = centre.copy()
        for weight, delta in zip(weights, deltas, strict=True):
            away = delta - centre
            moved += weight * away * min(1.0, radius / float(np.sqrt(away @ away)))
        np.testing.assert_allclose(combined.direction.numpy(), moved, rtol=1e-13)
        centre, state = moved, combined.aggregator_state


def test_a_client_cannot_move_the_clipped_aggregate_farther_than_its_weight_allows() -> None:
    aggregator = component("our_clipping")(radius=0.5).build()
    deltas, cohort = torch.from_numpy(normal(5, 3)), cohort_of(np.full(5, 0.2))
    state = aggregator.start(deltas[0])
    honest = aggregator.combine(deltas, cohort, state).direction
    deltas[2] = 1e9
    moved = aggregator.combine(deltas, cohort, state).direction
    assert float((moved - honest).norm()) <= 2 * 0.2 * 0.5 + 1e-12


def test_an_infinite_radius_is_the_mean() -> None:
    last = [
        next(iter(run(specification(QUADRATIC, aggregator=aggregator)))).extra["x"]
        for aggregator in ({"kind": "mean"}, component("our_clipping")(radius=1e6))
    ]
    np.testing.assert_allclose(last[1], last[0], rtol=1e-13)


def choosing(candidates: int, per_round: int = 2) -> Any:
    return component("our_power_of_choice")(clients_per_round=per_round, candidates=candidates)


def test_with_all_clients_as_candidates_those_with_the_largest_losses_train() -> None:
    """The losses (1/2) x'Hx - e'x + c are written out; the model x is that of the round."""
    dataset = QUADRATIC["problem"]["dataset"]
    clients = [
        {**client, "c": 0.5 * float(client["e"] @ np.linalg.solve(client["H"], client["e"]))}
        for client in ({**each, "e": np.array(each["e"])} for each in dataset["clients"])
    ]
    clients = [{**client, "e": client["e"].tolist()} for client in clients]  # each loss is at least 0
    problem = {"dataset": {**dataset, "clients": clients}}
    spec = specification(QUADRATIC, problem=problem, participation=choosing(4), rounds=40)
    simulation = Simulation(spec, seed=0)
    x = np.array(dataset["x0"])
    chosen = set()
    while not simulation.finished:
        work = simulation.begin().flow.work
        assert work is not None
        losses = [
            0.5 * x @ np.array(client["H"]) @ x - np.array(client["e"]) @ x + client["c"]
            for client in clients
        ]
        expected = sorted(np.argsort(losses)[-2:].tolist())
        assert work.clients.tolist() == expected
        chosen.add(tuple(expected))
        x = np.array(simulation.advance().extra["x"])
    assert len(chosen) > 1


def test_with_as_many_candidates_as_clients_train_the_losses_play_no_part() -> None:
    models = []
    for participation in (choosing(2), {"kind": "by_share", "clients_per_round": 2}):
        simulation = Simulation(specification(QUADRATIC, participation=participation), seed=1)
        while not simulation.finished:
            simulation.advance()
        models.append(simulation.model()["x"])
    assert torch.equal(models[0], models[1])


def test_candidates_receive_the_model_and_send_a_number() -> None:
    """Of eight clients, six are asked and two train: a softmax regression of 610 numbers of 8 bytes."""
    report = next(iter(run(specification(SYNTHETIC, participation=choosing(6)))))
    assert report.bytes_down == 6 * 610 * 8
    assert report.bytes_up == 2 * 610 * 8 + 6 * 8


def test_more_candidates_than_clients_are_refused() -> None:
    with pytest.raises(Exception, match="/participation/candidates: must be between K and N = 4"):
        specification(QUADRATIC, participation=choosing(5))


def test_the_agreement_is_the_mean_cosine_with_the_direction() -> None:
    measure = component("agreement")
    spec = specification(QUADRATIC, evaluation={"measures": [measure()], "record_parameters": True})
    simulation = Simulation(spec, seed=0)
    problem = QUADRATIC["problem"]["dataset"]
    shares = np.array([client["weight"] for client in problem["clients"]])
    x, deltas = np.array(problem["x0"]), []
    for client, steps in zip(problem["clients"], QUADRATIC["systems"]["steps"]["values"], strict=True):
        y = x.copy()
        for _ in range(steps):
            y = y - 0.05 * (np.array(client["H"]) @ y - np.array(client["e"]))
        deltas.append(y - x)
    direction = shares / shares.sum() @ np.array(deltas)
    cosines = [
        float(delta @ direction / np.sqrt((delta @ delta) * (direction @ direction))) for delta in deltas
    ]
    assert simulation.advance().extra["agreement"] == pytest.approx(np.mean(cosines), rel=1e-12)


@pytest.mark.parametrize("policy", ["average", "local"])
def test_candidates_are_compared_by_the_losses_of_the_current_network(policy: str) -> None:
    """The p-weighted mean of the losses at the start of a round is the training loss after the last."""
    seen: list[np.ndarray] = []

    class Watched(component("our_power_of_choice")):  # type: ignore[misc]
        kind: Literal["watched"] = "watched"

        def choose(self, candidates: np.ndarray, losses: np.ndarray) -> np.ndarray:
            seen.append(losses[np.argsort(candidates)])
            return super().choose(candidates, losses)

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 10)
    )
    problem = {**DIGITS["problem"], "model": ModuleObject.of(module, batch_norm=policy, l2=0.1)}
    execution = {"precision": "float64", "engine": "reference"}
    spec = specification(
        {**DIGITS, "problem": problem},
        participation=Watched(clients_per_round=2, candidates=5),
        execution=execution,
    )
    simulation = Simulation(spec, seed=0)
    losses = [simulation.advance().train_loss for _ in range(spec.rounds)]
    share = simulation.context.evaluated.share
    assert [share @ losses for losses in seen[1:]] == pytest.approx(losses[:-1], rel=1e-12)


def test_a_scheme_with_clients_per_round_is_planned_with_that_many() -> None:
    (played,) = play_draws([specification(SYNTHETIC, participation=choosing(6))])
    assert played.drawn == 2


def test_the_gap_is_between_the_clients_that_are_served_best_and_worst() -> None:
    measure = component("client_gap")
    partition = {"kind": "dirichlet", "clients": 4, "alpha": 0.3, "hold_out": 0.3}
    problem = {**DIGITS["problem"], "partition": partition}
    spec = specification(DIGITS, problem=problem, evaluation={"measures": [measure()]})
    simulation = Simulation(spec, seed=0)
    found: Any = simulation.advance().extra["client_gap"]
    data: Any = simulation.context.evaluated
    test, owners = data.data.dataset.test.numbers(), data.data.owners
    scores = data._plain.scores(simulation.state.server.x, test.features)
    right = (scores.argmax(1) == test.labels).numpy()
    shares = [right[owners == client].mean() for client in range(4) if (owners == client).any()]
    assert found == pytest.approx(max(shares) - min(shares), abs=1e-12)
    assert found > 0
