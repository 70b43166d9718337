"""The models: as many parameters as their specification says, initialised from the seed and nothing else."""

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from fedcore.errors import SpecificationError
from fedcore.models import zoo
from fedcore.models.flat import Layout
from fedcore.spec.dataset import AnyDataset
from fedcore.spec.problem import AnyModel, Cnn, Logistic, Mlp, Problem
from fedcore.spec.shapes import data_shape, dimension

DATASETS = {kind: {"kind": kind} for kind in ("synthetic", "digits", "mnist", "fashion_mnist", "cifar10")} | {
    split: {"kind": "emnist", "split": split} for split in ("balanced", "byclass", "letters")
}
MODELS = {
    "linear": {"kind": "linear"},
    "logistic": {"kind": "logistic"},
    "mlp": {"kind": "mlp"},
    "deep mlp": {"kind": "mlp", "hidden": [7, 3, 5]},
    "cnn": {"kind": "cnn"},
    "cnn with group norm": {"kind": "cnn", "channels": [8, 12], "hidden": 9, "norm": "group"},
}
PAIRS = [(dataset, model) for dataset in DATASETS for model in MODELS if not (dataset == "synthetic" and "cnn" in model)]


@pytest.mark.parametrize(("dataset", "model"), PAIRS)
def test_a_model_has_the_dimension_its_specification_says_and_scores_every_class(dataset: str, model: str) -> None:
    data: AnyDataset = TypeAdapter(AnyDataset).validate_python(DATASETS[dataset])
    spec: AnyModel = TypeAdapter(AnyModel).validate_python(MODELS[model])
    partition = None if dataset == "synthetic" else {"kind": "iid", "clients": 2}
    problem = Problem.model_validate({"dataset": data, "partition": partition, "model": spec})
    features, classes, _ = data_shape(data)
    module = zoo.build(spec, features, classes, seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) == dimension(problem) == Layout(module).dim
    assert module(torch.zeros(3, *features)).shape == (3, classes)


def test_the_cnn_has_the_parameters_its_paper_counts() -> None:
    """McMahan et al. (2017), Section 3: 1,663,370 in total."""
    assert Layout(zoo.build(Cnn(kind="cnn"), (1, 28, 28), 10, seed=0)).dim == 1_663_370


def parameters(seed: int) -> list[float]:
    return Layout(module := zoo.build(Mlp(kind="mlp", hidden=(4,)), (6,), 3, seed)).flat(module).tolist()


def test_initial_parameters_depend_on_the_seed_and_on_nothing_else() -> None:
    torch.manual_seed(1)
    first = parameters(seed=5)
    torch.manual_seed(2)
    assert first == parameters(seed=5) != parameters(seed=6)


def test_building_a_model_leaves_no_trace_in_pytorchs_own_stream() -> None:
    torch.manual_seed(3)
    undisturbed = torch.rand(4).tolist()
    torch.manual_seed(3)
    parameters(seed=0)
    assert torch.rand(4).tolist() == undisturbed


def test_initial_weights_are_within_pytorchs_bound() -> None:
    """nn.Linear: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases."""
    module = zoo.build(Logistic(kind="logistic"), (400,), 10, seed=0)
    theta = Layout(module).flat(module) * 400**0.5
    assert theta.abs().max() <= 1
    assert abs(theta.std() - 3**-0.5) < 0.02


def test_group_norm_follows_each_convolution() -> None:
    module = zoo.build(Cnn(kind="cnn", channels=(8, 12), hidden=9, norm="group"), (3, 32, 32), 10, seed=0)
    assert [layer.num_groups for layer in module.children() if isinstance(layer, nn.GroupNorm)] == [8, 1]


def test_running_statistics_are_refused() -> None:
    with pytest.raises(SpecificationError, match=r"1\.running_mean.*use group norm"):
        zoo.refuse_buffers(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
