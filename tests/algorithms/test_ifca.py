"""IFCA: the paper's loop written out, with and without shared layers, recovery of clusters, limit cases,
traffic and what is refused.
"""

from typing import Any

import numpy as np
import pytest
import torch

from fedcore import Simulation, run
from fedcore.data.federated import FederatedData
from fedcore.errors import SpecificationError
from fedcore.problems.supervised import SupervisedProblem
from fedcore.random import generator
from fedcore.testing import runs
from tests.algorithms.test_longhand import COHORTS, ETA, Vector, gradient, sgd
from tests.algorithms.test_longhand import E as LINEAR
from tests.algorithms.test_longhand import H as HESSIANS
from tests.algorithms.test_personal import personal_models
from tests.builders.specifications import COMPRESSORS, DIGITS, QUADRATIC, Document, quadratics, specification

LOCAL: Document = {"local": {"lr": ETA}, "participation": {"kind": "trace", "rounds": COHORTS}}
CONSTANTS = [client["c"] for client in QUADRATIC["problem"]["dataset"]["clients"]]


def loss(i: int, x: Vector) -> float:
    return float(x @ HESSIANS[i] @ x / 2 - LINEAR[i] @ x + CONSTANTS[i])


def nearest(i: int, models: Vector) -> int:
    """j(i), the model with the lowest loss."""
    return int(np.argmin([loss(i, model) for model in models]))


def round_of(models: Vector, cohort: list[int], averaging: str) -> Vector:
    chosen = {i: nearest(i, models) for i in cohort}
    moved = models.copy()
    for j, model in enumerate(models):
        members = [i for i in cohort if chosen[i] == j]
        changes = [sgd(i, model) - model for i in members]
        if members:
            moved[j] += sum(changes) / (len(members) if averaging == "models" else len(cohort))
    return moved


@pytest.mark.parametrize("averaging", ["models", "gradients"])
@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
def test_the_models_are_those_of_the_papers_loop(averaging: str, engine: str) -> None:
    algorithm = {"kind": "ifca", "clusters": 3, "averaging": averaging, "spread": 2.0}
    spec = specification(QUADRATIC, algorithm=algorithm, execution={"engine": engine}, **LOCAL)
    simulation = Simulation(spec, 5)
    models = simulation.state.server.x.numpy().reshape(3, 3).copy()
    used = set()
    for cohort in COHORTS:
        used |= {nearest(i, models) for i in cohort}
        models = round_of(models, cohort, averaging)
        simulation.advance()
        np.testing.assert_allclose(
            simulation.state.server.x.numpy().reshape(3, 3), models, rtol=0, atol=1e-12
        )
    assert len(used) > 1
    np.testing.assert_allclose(
        personal_models(simulation), [models[nearest(i, models)] for i in range(4)], rtol=0, atol=1e-12
    )


def test_gradient_averaging_of_one_step_is_option_one() -> None:
    """x_j <- x_j - (eta / m) times the sum of the gradients of its clients."""
    spec = specification(
        QUADRATIC,
        algorithm={"kind": "ifca", "averaging": "gradients", "spread": 2.0},
        local={"lr": ETA, "steps": 1},
        systems={"steps": None},
        rounds=3,
    )
    simulation = Simulation(spec, 5)
    models = simulation.state.server.x.numpy().reshape(2, 3).copy()
    for _ in range(3):
        chosen = [nearest(i, models) for i in range(4)]
        models = np.array(
            [
                model - ETA / 4 * sum(gradient(i, model) for i in range(4) if chosen[i] == j)
                for j, model in enumerate(models)
            ]
        )
        simulation.advance()
    np.testing.assert_allclose(simulation.state.server.x.numpy().reshape(2, 3), models, rtol=0, atol=1e-13)


@pytest.mark.parametrize("averaging", ["models", "gradients"])
@pytest.mark.parametrize("weighting", ["uniform", "samples", "original"])
def test_one_cluster_is_fedavg(averaging: str, weighting: str) -> None:
    participation = {"kind": "uniform", "clients_per_round": 2, "weighting": weighting}
    changes = {"participation": participation, "execution": {"engine": "reference"}}
    one = {"kind": "ifca", "clusters": 1, "averaging": averaging}
    found = list(run(specification(QUADRATIC, algorithm=one, **changes)))
    expected = list(run(specification(QUADRATIC, algorithm={"kind": "fedavg"}, **changes)))
    np.testing.assert_allclose(
        [report.extra["x"] for report in found],
        [report.extra["x"] for report in expected],
        rtol=0,
        atol=1e-14,
    )
    assert [report.bytes_up for report in found] == [report.bytes_up for report in expected]
    assert [report.bytes_down for report in found] == [report.bytes_down for report in expected]


SHARED: Document = {
    "name": "shared layers",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "shards", "clients": 6, "shards_per_client": 2},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "ifca", "clusters": 2, "head": ["1.bias"], "spread": 0.5},
    "local": {"lr": ETA, "steps": 2, "batch_size": "full"},
    "participation": {"kind": "trace", "rounds": [[0, 1, 2, 5], [0, 3, 4], [1, 2, 3, 4, 5]]},
    "rounds": 3,
    "execution": {"precision": "float64"},
}
"""Softmax regression on two classes of digits for each client: the clusters share the weights W, and have
intercepts b of their own.
"""
CLASSES, PIXELS = 10, 64


def softmax(data: FederatedData, client: int, theta: Vector) -> tuple[float, Vector]:
    """The mean cross-entropy of W v + b over a client's images v, and its gradient, for the rows (W_c, b_c)
    in theta.
    """
    rows = data.rows(client)
    images = data.dataset.train.features[rows].flatten(1).double().numpy()
    images = np.column_stack([images, np.ones(len(images))])
    labels = data.dataset.train.labels[rows].numpy()
    odds = np.exp(images @ theta.reshape(CLASSES, -1).T)
    odds /= odds.sum(1, keepdims=True)
    mine = np.arange(len(labels)), labels
    found = -float(np.log(odds[mine]).mean())
    odds[mine] -= 1
    odds /= len(labels)
    return found, (odds.T @ images).ravel()


@pytest.mark.parametrize("averaging", ["models", "gradients"])
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_shared_layers_are_averaged_over_all_clusters(averaging: str, engine: str) -> None:
    """W <- W + mean over the cohort, b_j <- b_j + mean over the clients of the cluster."""
    spec = specification(SHARED, algorithm={"averaging": averaging}, execution={"engine": engine})
    simulation = Simulation(spec, 1)
    used: set[int] = set()
    assert isinstance(simulation.context.evaluated, SupervisedProblem)
    data = simulation.context.evaluated.data
    models = simulation.state.server.x.numpy().reshape(2, -1).copy()
    own = PIXELS + (PIXELS + 1) * np.arange(CLASSES)  # b, behind the row of W of its class
    np.testing.assert_array_equal(np.flatnonzero(models[0] != models[1]), own)
    for cohort in SHARED["participation"]["rounds"]:
        chosen = {i: int(np.argmin([softmax(data, i, model)[0] for model in models])) for i in cohort}
        used |= set(chosen.values())
        changes = {}
        for i in cohort:
            y = models[chosen[i]]
            for _ in range(2):
                y = y - ETA * softmax(data, i, y)[1]
            changes[i] = y - models[chosen[i]]
        before = models.copy()
        models += np.mean([*changes.values()], axis=0)
        models[:, own] = before[:, own]
        for j in range(2):
            members = [changes[i] for i in cohort if chosen[i] == j]
            if members:
                counted = len(members) if averaging == "models" else len(cohort)
                models[j, own] += np.sum(members, axis=0)[own] / counted
        report = simulation.advance()
        np.testing.assert_allclose(
            simulation.state.server.x.numpy().reshape(2, -1), models, rtol=0, atol=1e-12
        )
        assert report.bytes_down == len(cohort) * (CLASSES * PIXELS + 2 * CLASSES) * 8
        assert report.bytes_up == len(cohort) * (CLASSES * PIXELS + CLASSES + 1) * 8
    assert used == {0, 1}


@pytest.mark.parametrize("averaging", ["models", "gradients"])
@pytest.mark.parametrize("weighting", ["uniform", "samples", "original"])
def test_clusters_that_share_all_layers_are_fedavg(averaging: str, weighting: str) -> None:
    participation = {"kind": "uniform", "clients_per_round": 2, "weighting": weighting}
    changes: Document = {
        "participation": participation,
        "server": {"kind": "momentum"},
        "execution": {"engine": "reference"},
    }
    shared = {"kind": "ifca", "clusters": 3, "averaging": averaging, "head": 0}
    found = list(run(specification(QUADRATIC, algorithm=shared, **changes)))
    expected = list(run(specification(QUADRATIC, algorithm={"kind": "fedavg"}, **changes)))
    np.testing.assert_allclose(
        [np.reshape(report.extra["x"], (3, -1)) for report in found],
        [np.tile(report.extra["x"], (3, 1)) for report in expected],
        rtol=0,
        atol=1e-13,
    )
    assert [report.bytes_down for report in found] == [report.bytes_down for report in expected]


def test_clusters_that_share_no_layer_are_those_without_sharing() -> None:
    def played(**more: Any) -> list[Any]:
        algorithm = {"kind": "ifca", "clusters": 3, "spread": 2.0, **more}
        spec = specification(QUADRATIC, algorithm=algorithm, execution={"engine": "reference"})
        return [(report.extra["x"], report.bytes_down) for report in run(spec)]

    assert played(head=1) == played()


def test_a_layer_that_the_model_does_not_have_is_refused_as_the_run_starts() -> None:
    with pytest.raises(SpecificationError, match="there is no layer classifier") as refusal:
        Simulation(specification(SHARED, algorithm={"head": ["classifier"]}), 0)
    assert refusal.value.pointer == "/algorithm/head"


def test_two_groups_are_recovered_and_each_model_rests_at_its_groups_optimum() -> None:
    """Clients of a group share the optimum, so that local steps do not move it."""
    clients, optima = quadratics(6), np.array([[4.0, 0.0, 1.0], [-4.0, 2.0, -1.0]])
    groups = [0, 1, 1, 0, 1, 0]
    for client, group in zip(clients, groups, strict=True):
        client["e"] = (np.array(client["H"]) @ optima[group]).tolist()
    spec = specification(
        QUADRATIC,
        problem={"dataset": {"clients": clients, "x0": [0.0, 0.0, 0.0]}},
        algorithm={"kind": "ifca", "clusters": 2, "spread": 1.0},
        local={"lr": 0.1, "steps": 5},
        systems={"steps": None},
        participation={"kind": "uniform", "clients_per_round": 4},
        rounds=60,
        evaluation={"every": 60},
    )
    simulation = runs.finished(spec, 0)
    np.testing.assert_allclose(personal_models(simulation), optima[groups], rtol=0, atol=1e-6)


def test_k_models_travel_down_and_one_with_its_number_up() -> None:
    for report in run(specification(QUADRATIC, algorithm={"kind": "ifca", "clusters": 3}, **LOCAL)):
        cohort = len(COHORTS[report.round - 1])
        assert report.bytes_down == cohort * 3 * 3 * 8
        assert report.bytes_up == cohort * (3 * 8 + 8)


def test_networks_start_at_draws_of_their_own_and_the_first_at_that_of_other_algorithms() -> None:
    def start(algorithm: Document) -> Vector:
        return Simulation(specification(DIGITS, algorithm=algorithm), 3).state.server.x.numpy()

    models = start({"kind": "ifca", "clusters": 3}).reshape(3, -1)
    np.testing.assert_array_equal(models[0], start({"kind": "fedavg"}))
    assert len(np.unique(models, axis=0)) == 3
    # PyTorch's own start of a layer with 64 inputs: uniform between -1/8 and 1/8.
    np.testing.assert_allclose(models.std(1), 0.25 / 12**0.5, rtol=0.1)
    np.testing.assert_array_equal(start({"kind": "ifca", "clusters": 3}).reshape(3, -1), models)


def test_the_servers_measures_see_the_first_model() -> None:
    spec = specification(QUADRATIC, algorithm={"kind": "ifca", "spread": 3.0}, **LOCAL)
    simulation = Simulation(spec, 0)
    report = [simulation.advance() for _ in COHORTS][-1]
    first = simulation.state.server.x[:3]
    assert report.train_loss == simulation.context.evaluated.evaluate(first, {"train_loss"})["train_loss"]
    assert set(simulation.model()) == {"0.x", "1.x"}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"privacy": {"kind": "local", "clip_norm": 1.0, "noise_multiplier": 1.0}}, "/algorithm"),
        (
            {"problem": {"model": {"kind": "torchvision", "name": "resnet18", "batch_norm": "average"}}},
            "/problem/model/batch_norm",
        ),
        ({"algorithm": {"clusters": 100}, "evaluation": {"record_parameters": True}}, "/evaluation"),
        (
            {"algorithm": {"head": 1}, "compression": {"downlink": {"kind": "qsgd"}}},
            "/compression/downlink",
        ),
    ],
    ids=["privacy", "batch norm", "recorded", "shared layers compressed"],
)
def test_specifications_that_several_models_cannot_run_are_refused(
    changes: dict[str, Any], pointer: str
) -> None:
    base: Document = {
        "name": "refused",
        "problem": {
            "dataset": {"kind": "cifar10"},
            "partition": {"kind": "iid", "clients": 4},
            "model": {"kind": "logistic"},
        },
        "algorithm": {"kind": "ifca"},
        "local": {"lr": 0.1, "steps": 1, "batch_size": 10},
        "rounds": 1,
    }
    with pytest.raises(SpecificationError) as refusal:
        specification(base, **changes)
    assert refusal.value.pointer.startswith(pointer)


@pytest.mark.parametrize("kind", ["top_k", "rand_k", "qsgd", "natural", "sign"])
def test_a_compressed_downlink_compresses_each_model_by_itself(kind: str) -> None:
    """Written out: a message, a residual and a stream for each model."""
    block = {"kind": kind, **COMPRESSORS[kind], "error_feedback": True} | (
        {"ratio": 0.34} if "_k" in kind else {}
    )
    spec = specification(
        QUADRATIC,
        algorithm={"kind": "ifca", "clusters": 3, "spread": 2.0},
        compression={"downlink": block},
        **LOCAL,
    )
    simulation, compressor = Simulation(spec, 5), spec.build().downlink
    known = simulation.state.server.x.reshape(3, 3).clone()
    rest = np.zeros((3, 3))
    for number, cohort in enumerate(COHORTS[:3], 1):
        moves = round_of(known.numpy(), cohort, "models") - known.numpy()
        received = np.zeros((3, 3))
        for j in range(3):
            message = torch.from_numpy(moves[j] + rest[j])
            drawn = compressor.sample(generator(5, "downlink compression", number, j), 3)
            received[j] = compressor.compress(message, drawn if drawn is None else torch.from_numpy(drawn))
            rest[j] = message.numpy() - received[j]
        known += torch.from_numpy(received)
        simulation.advance()
        torch.testing.assert_close(simulation.state.server.broadcast.reshape(3, 3), known, rtol=0, atol=1e-12)


def test_the_bytes_of_a_compressed_downlink_are_those_of_as_many_messages_as_models() -> None:
    spec = specification(
        QUADRATIC,
        algorithm={"kind": "ifca", "clusters": 3, "spread": 2.0},
        compression={"downlink": {"kind": "top_k", "k": 1}},
    )
    first, second, *_ = run(spec)
    assert first.bytes_down == 4 * 3 * 3 * 8
    assert second.bytes_down == 4 * 3 * (8 + 4)
