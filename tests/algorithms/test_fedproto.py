"""FedProto, and objectives that share what clients report: against a loop of PyTorch modules, in limits, and
where they are refused.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedcore import ExperimentSpec, Simulation
from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.fedproto import Prototypes
from fedcore.core import Outputs, View
from fedcore.errors import SpecificationError
from fedcore.testing import runs
from fedq.planning.work import count_gradients
from tests.algorithms.test_objectives import ENGINES, Dropping, Net, network, plain, unfit
from tests.builders.specifications import Document
from tests.engine.test_shards import Elsewhere

FEDPROTO: Document = {"kind": "fedproto", "lam": 0.4}


def own_models(simulation: Simulation) -> Tensor:
    """[N, D] the clients' own models."""
    clients = np.arange(len(simulation.context.problem.share))
    return simulation.state.table.gather(clients, ("personal",))["personal"]


def by_hand(spec: ExperimentSpec, lam: float) -> tuple[Tensor, Tensor, Tensor]:
    """The clients' models [N, D], and sums [C, F] and numbers [C] of the last cohort, after a loop of
    PyTorch's own modules, given the cohorts and mini-batches of the run.
    """
    simulation = Simulation(spec, 0)
    first = Net().double()
    first.load_state_dict(simulation.model(), strict=False)
    nets = [deepcopy(first) for _ in simulation.context.problem.share]
    known: dict[int, Tensor] = {}
    sums, counts = torch.empty(0), torch.empty(0)
    while not simulation.finished:
        flow = simulation.begin().flow
        assert flow.work is not None
        sums, counts = torch.zeros(10, 7, dtype=torch.float64), torch.zeros(10)
        for client, batches in zip(flow.work.clients.tolist(), flow.work.batches, strict=True):
            samples = simulation.context.evaluated.samples(client)  # type: ignore[attr-defined]
            net = nets[client].train()
            for batch in batches:
                rows = torch.from_numpy(batch[batch >= 0])
                z, labels = net.features(samples.features[rows]), samples.labels[rows]
                value = functional.cross_entropy(net.last(z), labels)
                for c in set(labels.tolist()) & set(known):
                    value = value + lam * (z[labels == c].mean(0) - known[c]).square().sum().sqrt()
                gradients = torch.autograd.grad(value, list(net.parameters()))
                with torch.no_grad():
                    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                        parameter.sub_(gradient, alpha=0.1)
            with torch.no_grad():
                z = net.eval().features(samples.features)
            for c in range(10):
                sums[c] += z[samples.labels == c].sum(0)
                counts[c] += (samples.labels == c).sum()
        known = {c: sums[c] / counts[c] for c in range(10) if counts[c]}
        simulation.advance()
    flat = [torch.cat([parameter.detach().flatten() for parameter in net.parameters()]) for net in nets]
    return torch.stack(flat), sums, counts


@pytest.mark.parametrize("engine", ENGINES)
def test_fedproto_is_a_loop_of_plain_pytorch(engine: str) -> None:
    models, sums, counts = by_hand(network(FEDPROTO), 0.4)
    simulation = runs.finished(network(FEDPROTO, execution={"engine": engine}), 0)
    shared = simulation.state.server.shared
    torch.testing.assert_close(own_models(simulation), models, rtol=0, atol=1e-9)
    torch.testing.assert_close(shared["sums"], sums, rtol=0, atol=1e-9)
    assert shared["counts"][:, 0].tolist() == counts.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_without_distances_clients_train_alone(engine: str) -> None:
    changes = {"problem": {"model": {"module": Dropping}}, "execution": {"engine": engine}}
    found, expected = (
        own_models(runs.finished(network(one, **changes), 0))
        for one in ({"kind": "fedproto", "lam": 0.0}, {"kind": "local"})
    )
    assert torch.equal(found, expected)


def test_the_first_round_is_local_training() -> None:
    found, expected = (
        own_models(runs.finished(network(one, rounds=1), 0)) for one in (FEDPROTO, {"kind": "local"})
    )
    assert torch.equal(found, expected)


def test_nothing_but_sums_and_numbers_travels() -> None:
    """4 bytes for each of 10 x 7 sums and 10 numbers, each way, for the two clients of a round."""
    report = Simulation(network(FEDPROTO, execution={"precision": "float32"}), 0).advance()
    assert report.bytes_up == report.bytes_down == 2 * 4 * (10 * 7 + 10)


@pytest.mark.parametrize("policy", ["average", "group", "frozen"])
def test_engines_agree_with_dropout_under_policies_of_batch_norm(policy: str) -> None:
    model = {"module": Dropping, "batch_norm": policy}
    runs.engines_agree(partial(network, FEDPROTO, problem={"model": model}))


def test_a_run_goes_on_from_any_round_to_the_bit() -> None:
    changes = {"problem": {"model": {"module": Dropping}}, "execution": {"precision": "float32"}}
    runs.resumes_at_every_round(partial(network, FEDPROTO, **changes))


def test_shards_trained_elsewhere_have_the_same_bits() -> None:
    spec = network(FEDPROTO, execution={"shards": 2})
    here, there = runs.finished(spec, 3), Simulation(spec, 3)
    there.share(Elsewhere(there, spec, "cpu"))
    while not there.finished:
        there.advance()
    assert torch.equal(own_models(there), own_models(here))
    assert torch.equal(there.state.server.shared["sums"], here.state.server.shared["sums"])


def test_labels_of_sequences_have_prototypes_too() -> None:
    """Mean features of the symbols that come next; padding, which has no label, counts in none."""
    scores, labels = torch.randn(2, 3, 4), torch.tensor([[0, 2, 0], [2, -100, -100]])
    features, weights = torch.arange(12.0).view(2, 3, 2), torch.ones(2)
    view = View(lambda *_: torch.zeros(2), weights, None, weights[:, None][:, :0])
    found = Prototypes().report(Outputs(scores, features), labels, view)
    assert found["counts"][:, 0].tolist() == [2, 0, 2, 0]
    assert found["sums"].tolist() == [[0 + 4, 1 + 5], [0, 0], [2 + 6, 3 + 7], [0, 0]]


def test_a_report_counts_as_a_third_of_a_gradient_of_all_samples() -> None:
    class Played:
        steps, batches = 30.0, 12.0

    played: Any = Played()
    assert count_gradients(network(FEDPROTO).build(), played) == pytest.approx(30 + 4)


Reporter = Callable[[Outputs, Tensor, View], Any]


def reporting(report: Reporter, shared: Any = ("total",)) -> AlgorithmSpec:
    """FedAvg whose clients report this."""

    return unfit(plain, shared=shared, report=lambda _, *given: report(*given))


WRONG: dict[str, tuple[AlgorithmSpec, str]] = {
    "a mean": (reporting(lambda o, *_: {"total": o.scores.mean(0)}), "'total', which is no sum over samples"),
    "each sample": (reporting(lambda o, *_: {"total": o.scores}), "'total', which is no sum over samples"),
    "another name": (
        reporting(lambda o, *_: {"sum": o.scores.sum(0)}),
        r"gives \['sum'\], and `shared` names",
    ),
    "a tensor": (reporting(lambda o, *_: o.scores.sum(0)), "and `shared` names"),
    "no tuple": (reporting(lambda *_: {}, shared="total"), "Own.shared must be a tuple of names"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_report_that_cannot_be_added_up_is_refused_before_training(mistake: str) -> None:
    algorithm, words = WRONG[mistake]
    with pytest.raises((TypeError, SpecificationError), match=words):
        Simulation(network(algorithm), 0)


def test_the_server_sums_the_reports_of_the_cohort() -> None:
    """Numbers of samples of a cohort that all take part in."""
    algorithm = reporting(lambda *given: {"total": given[2].weights.sum()})
    simulation = runs.finished(network(algorithm, participation={"kind": "full"}), 0)
    assert float(simulation.state.server.shared["total"]) == simulation.context.problem.sizes.sum()


REFUSED: dict[str, tuple[Document, str]] = {
    "asynchrony": (
        {
            "participation": None,
            "systems": {"devices": {"steps_per_second": {"kind": "constant", "value": 1.0}}},
            "asynchrony": {"kind": "fedbuff", "concurrency": 3, "buffer": 2},
        },
        "/algorithm",
    ),
    "forged changes": ({"systems": {"attack": {"kind": "sign_flipping", "share": 0.25}}}, "/systems/attack"),
    "client-level privacy": (
        {
            "problem": {"model": {"batch_norm": "group"}},
            "privacy": {"kind": "client_level", "clip_norm": 1.0, "noise_multiplier": 1.0},
            "participation": {"kind": "bernoulli", "probability": 0.5, "weighting": "uniform"},
            "systems": {"steps": None},
        },
        "/algorithm",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_reports_are_refused_beside_what_does_not_know_them(case: str) -> None:
    changes, pointer = REFUSED[case]
    for algorithm in (FEDPROTO, reporting(lambda o, *_: {"total": o.scores.sum(0)})):
        with pytest.raises(SpecificationError) as refused:
            network(algorithm, **changes)
        assert refused.value.pointer == pointer
