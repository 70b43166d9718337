"""Training on pooled samples: a plain loop over all data, FedAvg's steps, and limit cases."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcore import ExperimentSpec, Simulation, run
from fedcore.algorithms.pooled import PooledModel
from fedcore.core import Algorithm, Exchange, Rule
from fedcore.data.plan import PADDING
from fedcore.engine.assignment import CohortWork
from fedcore.errors import SpecificationError
from fedcore.problems.supervised import SupervisedProblem
from fedcore.random import generator
from fedcore.simulation.report import RoundReport
from fedcore.testing import runs
from tests.builders.specifications import (
    DIGITS,
    QUADRATIC,
    SYNTHETIC,
    Document,
    merged,
    specification,
)

POOLED: Document = {"algorithm": {"kind": "pooled"}}
ENGINES = ("reference", "parallel", "vectorised", "compiled")
LOCALS: dict[str, Document] = {
    "plain": {},
    "momentum, decay, schedule": {
        "optimizer": {"momentum": 0.9, "weight_decay": 0.01},
        "lr_schedule": {"kind": "exponential", "gamma": 0.5, "counts": "rounds"},
    },
}
SYSTEMS: dict[str, Document] = {
    "steps": {"steps": {"kind": "per_client", "values": [5, 1, 7, 3, 2, 9, 4, 6]}, "epochs": None},
    "batch sizes": {"batch_size": {"kind": "uniform", "low": 3, "high": "samples"}},
    "stragglers": {"stragglers": {"fraction": 0.5, "policy": "drop"}},
    "deadline": {
        "devices": {"steps_per_second": {"kind": "log_normal", "median": 3, "sigma": 1}},
        "deadline": {"seconds": 4, "policy": "accept_partial"},
    },
}
ALL: Document = {"participation": {"kind": "full"}, "systems": {}}


def only(document: Document, **blocks: Any) -> Document:
    """`document` with whole blocks in place of its own."""
    return {**document, **blocks}


def works(spec: ExperimentSpec) -> list[CohortWork]:
    """The work of each round."""
    simulation, found = Simulation(spec, 0), []
    while not simulation.finished:
        opened = simulation.begin()
        assert opened.flow.work is not None
        found.append(opened.flow.work)
        simulation.advance()
    return found


def lengths(work: CohortWork) -> list[int]:
    """Samples of the steps of a round."""
    rows = [(batch != PADDING).sum(1).tolist() for batch in work.batches]
    return [count for of_client in rows for count in of_client]


def measured(report: RoundReport, name: str) -> float:
    value = report.extra[name]
    assert isinstance(value, float)
    return value


def theta(simulation: Simulation) -> Tensor:
    return simulation.state.server.x


def longhand(spec: ExperimentSpec, rounds: Sequence[Sequence[int]]) -> Tensor:
    """SGD on the samples of all clients as one set; `rounds` has the samples of each step of each round."""
    problem = Simulation(spec, 0).context.evaluated
    assert isinstance(problem, SupervisedProblem)
    samples = problem.data.dataset.train.take(problem.data.order)
    layer = nn.Linear(samples.features.shape[1], int(samples.labels.max()) + 1, dtype=torch.float64)
    first = problem.initial().view(layer.out_features, -1)
    layer.weight.data, layer.bias.data = first[:, :-1].clone(), first[:, -1].clone()
    optimizer, schedule = spec.local.optimizer.model_dump(), spec.local.lr_schedule
    momentum, decay = optimizer["momentum"], optimizer["weight_decay"]
    assert spec.local.lr is not None
    for number, steps in enumerate(rounds, start=1):
        lr = spec.local.lr * (0.5 ** (number - 1) if schedule.kind == "exponential" else 1.0)
        descent = torch.optim.SGD(layer.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
        passes = -(-sum(steps) // len(samples)), len(samples)
        order = generator(0, "batches", number, 0).permuted(
            np.broadcast_to(np.arange(len(samples)), passes), axis=1
        )
        for chosen in torch.split(torch.from_numpy(order.ravel()[: sum(steps)]), list(steps)):
            descent.zero_grad()
            scores = layer(samples.features[chosen])
            loss = nn.functional.cross_entropy(scores, samples.labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
    return torch.cat([layer.weight.detach(), layer.bias.detach()[:, None]], 1).flatten()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("local", LOCALS)
def test_the_model_is_that_of_a_plain_loop_over_all_data(engine: str, local: str) -> None:
    document = merged(SYNTHETIC, {**POOLED, "local": LOCALS[local], "execution": {"engine": engine}})
    spec = specification(document)
    steps = [sorted_by_epoch(work) for work in works(specification(document, algorithm={"kind": "fedavg"}))]
    torch.testing.assert_close(theta(runs.finished(spec, 0)), longhand(spec, steps), rtol=0, atol=1e-9)


def sorted_by_epoch(work: CohortWork) -> list[int]:
    """Samples of the steps of a cohort, those of the first epochs first; each epoch ends with a short
    batch.
    """
    found = []
    for batch in work.batches:
        counts, epoch = (batch != PADDING).sum(1), 0
        held = len(np.unique(batch[batch != PADDING]))
        seen = 0
        for count in counts.tolist():
            found.append((epoch, count))
            seen += count
            epoch, seen = (epoch + 1, 0) if seen == held else (epoch, seen)
    return [count for _, count in sorted(found, key=lambda pair: pair[0])]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "local", [{}, {"batch_size": "full"}, {"batch_size": 100_000}, {"epochs": None, "steps": 7}], ids=str
)
def test_with_one_client_it_is_fedavg_of_that_client(engine: str, local: Document) -> None:
    document = merged(only(SYNTHETIC, **ALL), {"problem": {"dataset": {"clients": 1}}, "local": local})
    pooled, fedavg = (
        runs.finished(specification(document, algorithm={"kind": kind}, execution={"engine": engine}), 0)
        for kind in ("pooled", "fedavg")
    )
    assert torch.equal(theta(pooled), theta(fedavg))


@pytest.mark.parametrize("systems", SYSTEMS)
def test_a_round_takes_the_steps_of_fedavgs_cohort_on_as_many_samples(systems: str) -> None:
    document = only(SYNTHETIC, systems=SYSTEMS[systems])
    if systems == "steps":
        document = merged(document, {"local": {"epochs": None}})
    of_all, of_each = (
        works(specification(document, algorithm={"kind": kind})) for kind in ("pooled", "fedavg")
    )
    for pooled, cohort in zip(of_all, of_each, strict=True):
        assert pooled.steps.tolist() == [cohort.steps.sum()]
        assert sorted(lengths(pooled)) == sorted(lengths(cohort))


def test_an_epoch_of_all_clients_is_a_pass_over_all_data() -> None:
    spec = specification(only(SYNTHETIC, **ALL), **POOLED)
    sizes = Simulation(spec, 0).context.evaluated.sizes
    for work in works(spec):
        (batches,) = work.batches
        ends = np.cumsum((batches != PADDING).sum(1))
        assert sizes.sum() in ends, "a mini-batch ends where an epoch does"
        for epoch in np.split(batches[batches != PADDING], 2):
            np.testing.assert_array_equal(np.sort(epoch), np.arange(sizes.sum()))


def test_rounds_draw_other_mini_batches_and_arms_of_a_seed_the_same() -> None:
    spec = specification(SYNTHETIC, **POOLED)
    first, second, *_ = (work.batches[0] for work in works(spec))
    assert not np.array_equal(first[:2], second[:2])
    np.testing.assert_array_equal(first, works(spec)[0].batches[0])


def test_it_comes_to_rest_at_the_optimum_of_quadratics_whatever_the_steps_of_clients() -> None:
    *_, last = run(specification(QUADRATIC, **POOLED, rounds=40))
    *_, drifted = run(specification(QUADRATIC, rounds=40))
    assert measured(last, "distance") < 1e-9
    assert measured(drifted, "distance") > 1e-2


@pytest.mark.parametrize("weights", [[1.0, 1.0], [5.0, 1.0]], ids=["alike", "unlike"])
def test_clients_of_least_squares_count_by_their_weights(weights: list[float]) -> None:
    draw = np.random.default_rng(3)
    clients = [
        {"A": draw.normal(size=(rows, 2)).tolist(), "b": draw.normal(size=rows).tolist(), "weight": weight}
        for rows, weight in zip((3, 5), weights, strict=True)
    ]
    document = {
        **QUADRATIC,
        "problem": {"dataset": {"kind": "least_squares", "clients": clients, "ridge": 0.1, "x0": [1.0, 1.0]}},
        "local": {"lr": 0.2, "steps": 5},
        "systems": {},
    }
    *_, last = run(specification(document, **POOLED, rounds=50))
    assert measured(last, "distance") < 1e-9


def test_it_comes_to_rest_at_the_optimum_of_softmax_regression() -> None:
    changes: Document = {"problem": {"model": {"l2": 1.0}}, "local": {"lr": 0.05, "batch_size": "full"}}
    document = merged(only(SYNTHETIC, **ALL), {**changes, "rounds": 40, "evaluation": {"every": 40}})
    measures = {"measures": ["gradient_norm", "train_loss"]}
    *_, pooled = run(specification(document, **POOLED, evaluation=measures))
    *_, fedavg = run(specification(document, evaluation=measures))
    assert measured(pooled, "gradient_norm") < 1e-9
    assert measured(fedavg, "gradient_norm") > 1e-3


@pytest.mark.parametrize(
    ("engine", "policy"), [("reference", "average"), ("parallel", "group"), ("vectorised", "frozen")]
)
def test_batch_norm_has_the_statistics_of_the_one_set(engine: str, policy: str) -> None:
    """With one client they are FedAvg's."""
    network = {"kind": "fedbn_cnn", "channels": [2, 2, 3], "hidden": [5], "batch_norm": policy}
    document = {
        **DIGITS,
        "problem": {**DIGITS["problem"], "partition": {"kind": "iid", "clients": 1}, "model": network},
        "local": {"lr": 0.1, "steps": 2, "batch_size": 10},
        "rounds": 2,
        "execution": {"engine": engine, "precision": "float64"},
    }
    pooled, fedavg = (
        runs.finished(specification(document, algorithm={"kind": kind}), 0).model()
        for kind in ("pooled", "fedavg")
    )
    assert all(torch.equal(pooled[name], fedavg[name]) for name in fedavg)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local": {"optimizer": {"kind": "adam"}, "lr": 0.01}},
    ],
    ids=["softmax", "adam"],
)
def test_engines_agree_and_runs_resume_at_every_round(changes: Document) -> None:
    document = merged(merged(SYNTHETIC, {**POOLED, "rounds": 2}), changes)

    def make(**others: Any) -> ExperimentSpec:
        return specification(document, **others)

    runs.engines_agree(make)
    runs.resumes_at_every_round(make)


def test_nothing_is_sent_and_a_round_takes_as_long_as_that_of_clients_alone() -> None:
    systems = {
        "devices": {
            "steps_per_second": {"kind": "uniform", "low": 1, "high": 4},
            "upload_bytes_per_second": {"kind": "constant", "value": 1.0},
        }
    }
    reports = run(specification(only(SYNTHETIC, systems=systems), **POOLED))
    alone = run(specification(only(SYNTHETIC, systems=systems), algorithm={"kind": "local"}))
    for report, local in zip(reports, alone, strict=True):
        assert (report.bytes_up, report.bytes_down) == (0, 0)
        assert report.extra["simulated_seconds"] == local.extra["simulated_seconds"]


def test_personal_accuracy_is_that_of_the_one_model_on_each_clients_tests() -> None:
    document = merged(DIGITS, {**POOLED, "problem": {"partition": {"hold_out": 0.2}}, "rounds": 1})
    spec = specification(document, evaluation={"measures": ["personal_accuracy"]})
    simulation = Simulation(spec, 0)
    report = simulation.advance()
    accuracies = simulation.context.evaluated.client_accuracies(theta(simulation))
    assert accuracies is not None
    assert report.extra["personal_accuracy"] == pytest.approx(np.nanmean(accuracies), abs=1e-12)


def test_the_transformed_objective_is_the_same_on_pooled_data() -> None:
    scheme = {"kind": "without_replacement", "clients_per_round": 4}
    plain, transformed = (
        runs.finished(
            specification(only(SYNTHETIC, participation={**scheme, "transformed": value}), **POOLED), 0
        )
        for value in (False, True)
    )
    assert torch.equal(theta(plain), theta(transformed))


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        ({"server": {"kind": "adam"}}, "/server", "null"),
        ({"algorithm": {"server_lr": 0.5}}, "/algorithm/server_lr", "omit"),
        ({"aggregator": {"kind": "median"}}, "/aggregator", "null"),
        ({"compression": {"uplink": {"kind": "sign"}}}, "/compression/uplink", "{kind: none}"),
        (
            {"systems": {"attack": {"kind": "sign_flipping"}}},
            "/systems/attack",
            "null",
        ),
        ({"evaluation": {"measures": ["client_drift"]}}, "/evaluation/measures", "client_drift"),
        ({"evaluation": {"measures": ["surrogate_diversity"]}}, "/evaluation/measures", "surrogate"),
        ({"participation": {"kind": "oort", "clients_per_round": 2}}, "/participation", "uniform"),
    ],
    ids=str,
)
def test_what_is_done_to_messages_or_by_single_clients_is_refused(
    changes: Document, field: str, fix: str
) -> None:
    with pytest.raises(SpecificationError) as refused:
        specification(merged({**SYNTHETIC, **POOLED}, changes))
    assert refused.value.pointer == field
    assert fix in refused.value.detail


def test_an_arm_stands_beside_arms_that_compress_and_guard() -> None:
    spec = specification(
        SYNTHETIC,
        compression={"uplink": {"kind": "sign"}},
        aggregator={"kind": "median"},
        sweep={
            "arms": [
                {"name": "SignSGD", "algorithm": {"kind": "fedavg"}},
                {"algorithm": {"kind": "pooled"}, "compression": {}, "aggregator": None},
            ]
        },
    )
    assert [arm.spec.algorithm.kind for arm in spec.arms()] == ["fedavg", "pooled"]


def test_a_search_does_not_compare_methods_with_it() -> None:
    with pytest.raises(SpecificationError, match="line of reference") as refused:
        specification(
            SYNTHETIC,
            rounds=8,
            sweep={"algorithm": [{"kind": "fedavg"}, {"kind": "pooled"}]},
            search={"kind": "successive_halving", "metric": "train_loss", "min_rounds": 2},
        )
    assert refused.value.pointer == "/search"


def test_pooled_samples_have_no_clients_who_keep_or_send_anything() -> None:
    class Keeping(Rule):
        memory = ("control",)

    for parts in ({"rule": Keeping()}, {"exchange": Exchange()}):
        with pytest.raises(TypeError, match="none keeps or sends"):
            Algorithm(models=PooledModel(), **parts)
