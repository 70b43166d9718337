"""theta [D] and the named parameters are the same numbers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedcore import ExperimentSpec, Simulation
from fedcore.models.flat import Layout
from fedcore.models.layers import dense

MODULES = {
    "one linear layer": dense(6, 3),
    "deep": dense(6, 5, 4, 3),
    "without bias": nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False)),
    "convolution": nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)),
    "nested": nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_scores_the_same_with_its_own_parameters_and_with_theirs_from_theta(name: str) -> None:
    module, inputs = MODULES[name], torch.randn(5, 6)
    layout = Layout(module)
    theta = layout.flat(module)
    assert theta.shape == (sum(parameter.numel() for parameter in module.parameters()),)
    torch.testing.assert_close(functional_call(module, layout.named(theta), (inputs,)), module(inputs))


@pytest.mark.parametrize("name", MODULES)
def test_every_entry_of_theta_belongs_to_one_parameter(name: str) -> None:
    layout = Layout(MODULES[name])
    theta = torch.arange(layout.dim)
    assert (
        sorted(torch.cat([view.flatten() for view in layout.named(theta).values()]).tolist())
        == theta.tolist()
    )


def test_vectors_are_named_at_once() -> None:
    layout = Layout(MODULES["deep"])
    thetas = torch.randn(4, layout.dim)
    for name, views in layout.named(thetas).items():
        for theta, view in zip(thetas, views, strict=True):
            assert torch.equal(layout.named(theta)[name], view)


def test_a_copy_of_the_parameters_does_not_follow_them() -> None:
    module = dense(2, 2)
    theta = Layout(module).flat(module)
    before = theta.clone()
    with torch.no_grad():
        module.get_parameter("1.weight").zero_()
    assert torch.equal(theta, before)


@pytest.mark.parametrize(
    ("name", "depth"),
    [("one linear layer", 1), ("deep", 3), ("without bias", 0), ("convolution", 0), ("nested", 0)],
)
def test_depth_counts_the_layers_of_fully_connected_modules_only(name: str, depth: int) -> None:
    assert Layout(MODULES[name]).depth == depth


@pytest.mark.parametrize("hidden", [(), (2,)])
def test_recorded_parameters_are_weights_and_bias_output_by_output(hidden: tuple[int, ...]) -> None:
    """The order that the documentation of `record_parameters` gives."""
    model = {"kind": "mlp", "hidden": hidden} if hidden else {"kind": "logistic"}
    data = {"kind": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 2, "seed": 12}
    spec = ExperimentSpec.model_validate(
        {
            "name": "order",
            "problem": {"dataset": data, "model": model},
            "algorithm": {"kind": "fedavg"},
            "local": {"lr": 0.1, "steps": 1, "batch_size": 5},
            "rounds": 1,
            "evaluation": {"measures": [], "record_parameters": True},
            "execution": {"precision": "float64"},
        }
    )
    simulation = Simulation(spec, 0)
    recorded = simulation.advance().extra["x"]
    parameters = list(simulation.model().values())
    layers = zip(parameters[::2], parameters[1::2], strict=True)
    assert recorded == torch.cat([torch.column_stack(layer).flatten() for layer in layers]).tolist()
