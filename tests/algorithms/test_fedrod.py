"""FedRoD: against a loop of PyTorch modules with two heads, and in its limits."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedcore import ExperimentSpec, Simulation
from fedcore.algorithms.fedrod import BalancedSoftmax
from fedcore.core import Outputs, View
from fedcore.engine.personal import PersonalModels
from fedcore.testing import runs
from tests.algorithms.test_objectives import ENGINES, Dropping, Net, averaged, flat, network

FEDROD = {"kind": "fedrod"}
HEAD = 7 * 10 + 10
"""Weights and biases of the last layer."""


def personal_models(simulation: Simulation) -> Tensor:
    """[N, D]."""
    models = PersonalModels(simulation.context, simulation.state.server, simulation.state.table)
    return models.models(np.arange(len(simulation.context.problem.share))).models


def parameters(net: Net) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def by_hand(spec: ExperimentSpec) -> tuple[Tensor, Tensor]:
    """The generic model [D] and the personal heads [N, HEAD] of a loop over two heads on one body, given the
    cohorts and mini-batches of the run.
    """
    simulation = Simulation(spec, 0)
    net = Net().double()
    net.load_state_dict(simulation.model(), strict=False)
    heads = [torch.nn.Linear(7, 10).double() for _ in simulation.context.problem.share]
    for head in heads:
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    while not simulation.finished:
        flow = simulation.begin().flow
        assert flow.work is not None
        assert flow.cohort is not None
        trained = []
        for client, batches in zip(flow.work.clients.tolist(), flow.work.batches, strict=True):
            samples = simulation.context.evaluated.samples(client)  # type: ignore[attr-defined]
            counts = torch.bincount(samples.labels, minlength=10)
            own, head = deepcopy(net).train(), heads[client]
            for batch in batches:
                rows = torch.from_numpy(batch[batch >= 0])
                z, labels = own.features(samples.features[rows]), samples.labels[rows]
                generic = own.last(z)
                weighed = counts * generic.exp()
                balanced = -(weighed.gather(1, labels[:, None])[:, 0] / weighed.sum(1)).log().mean()
                personal = functional.cross_entropy(generic.detach() + head(z.detach()), labels)
                trainable = [*own.parameters(), *head.parameters()]
                gradients = torch.autograd.grad(balanced + personal, trainable)
                with torch.no_grad():
                    for parameter, gradient in zip(trainable, gradients, strict=True):
                        parameter.sub_(gradient, alpha=0.1)
            trained.append(own.state_dict())
        net.load_state_dict(averaged(trained, flow.cohort.weights), strict=False)
        simulation.advance()
    flattened = [torch.cat([head.weight.detach().flatten(), head.bias.detach()]) for head in heads]
    return parameters(net), torch.stack(flattened)


@pytest.mark.parametrize("engine", ENGINES)
def test_fedrod_is_a_loop_of_plain_pytorch(engine: str) -> None:
    expected, heads = by_hand(network(FEDROD))
    simulation = runs.finished(network(FEDROD, execution={"engine": engine}), 0)
    x, personal = simulation.state.server.x, personal_models(simulation)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(personal[:, -HEAD:] - x[-HEAD:], heads, rtol=0, atol=1e-9)
    assert torch.equal(personal[:, :-HEAD], x[:-HEAD].expand(len(personal), -1))


def test_classes_of_equal_size_count_as_they_are() -> None:
    """Then the loss of scores that are all raised alike is that of the problem."""

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(scores, labels, reduction="none")

    scores, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    weights = torch.full((5,), 0.2)
    view = View(loss, weights, torch.full((3,), 4.0, dtype=torch.float64), weights[:, None][:, :0])
    found = BalancedSoftmax().loss(Outputs(scores), labels, view)
    torch.testing.assert_close(found, loss(scores, labels), rtol=0, atol=1e-12)


def test_a_class_that_a_client_lacks_has_neither_probability_nor_gradient() -> None:
    scores = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    weights, counts = torch.ones(1), torch.tensor([2.0, 0.0, 2.0], dtype=torch.float64)
    view = View(
        lambda s, y: functional.cross_entropy(s, y, reduction="none"),
        weights,
        counts,
        weights[:, None][:, :0],
    )
    (gradient,) = torch.autograd.grad(
        BalancedSoftmax().loss(Outputs(scores), torch.tensor([0]), view).sum(), scores
    )
    assert gradient.tolist() == [[-0.5, 0.0, 0.5]]


def test_personal_heads_leave_the_generic_model_alone() -> None:
    """It is the same if personal heads are taken away before each round."""
    spec = network(FEDROD)
    simulation, other = Simulation(spec, 0), Simulation(spec, 0)
    while not simulation.finished:
        simulation.advance()
        other.advance()
        clients = np.arange(len(other.context.problem.share))
        kept = other.state.table.gather(clients)
        other.state.table.scatter(clients, {**kept, "personal": 0 * kept["personal"]})
    assert torch.equal(other.state.server.x, simulation.state.server.x)
    assert not torch.equal(personal_models(other), personal_models(simulation))


def test_one_model_travels() -> None:
    found, fedavg = (Simulation(network({"kind": kind}), 0).advance() for kind in ("fedrod", "fedavg"))
    assert (found.bytes_up, found.bytes_down) == (fedavg.bytes_up, fedavg.bytes_down)


@pytest.mark.parametrize("policy", ["average", "group", "frozen"])
def test_engines_agree_with_dropout_and_policies_of_batch_norm(policy: str) -> None:
    model = {"module": Dropping, "batch_norm": policy}
    runs.engines_agree(partial(network, FEDROD, problem={"model": model}))


def test_a_run_goes_on_from_any_round_to_the_bit() -> None:
    changes = {"problem": {"model": {"module": Dropping}}, "execution": {"precision": "float32"}}
    runs.resumes_at_every_round(partial(network, FEDROD, **changes))


def test_clients_that_lack_no_class_by_much_have_nearly_fedavgs_model() -> None:
    """The nearer the numbers of samples of classes, the nearer the model."""
    near, far = ({"problem": {"partition": {"kind": "dirichlet", "alpha": alpha}}} for alpha in (1e6, 0.3))
    off = [
        float((flat(network(FEDROD, **one)) - flat(network({"kind": "fedavg"}, **one))).norm())
        for one in (near, far)
    ]
    assert off[0] < 0.3 * off[1]
