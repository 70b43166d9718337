"""Every model beyond the fully connected ones: every way to its gradient is PyTorch's own, whatever
the inputs are.
"""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from fedcore.data.federated import Samples, UndividedDataset, divide
from fedcore.models import AnyModel
from fedcore.models.layers import build_module
from fedcore.problems.supervised import SupervisedProblem

SIZES = (5, 3, 1)
BATCHES = torch.tensor([[[0, 4, 2]], [[1, 2, -1]], [[0, -1, -1]]])
SYMBOLS, LENGTH, EMBEDDING = 11, 6, 4
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], int]] = {
    "cnn, two dense layers": ({"kind": "cnn", "channels": [2, 3], "hidden": [5, 4]}, (1, 8, 8), 3),
    "fedaware_cnn": ({"kind": "fedaware_cnn", "l2": 0.1}, (3, 18, 18), 3),
    "vgg11": ({"kind": "vgg11"}, (1, 32, 32), 3),
    "resnet18": ({"kind": "resnet18"}, (1, 8, 8), 3),
    "char_lstm": ({"kind": "char_lstm", "hidden": 5, "l2": 0.1}, (LENGTH,), SYMBOLS),
    "sent_lstm": ({"kind": "sent_lstm", "hidden": 5, "dense": 3}, (LENGTH,), 2),
}
LARGE = {"vgg11", "resnet18"}


def problem(name: str, dtype: torch.dtype = torch.float64) -> tuple[SupervisedProblem, nn.Module]:
    """A problem of three clients, and its module as one would train it without this library."""
    document, shape, classes = CASES[name]
    spec: AnyModel = TypeAdapter(AnyModel).validate_python(document)
    draw = torch.Generator().manual_seed(0)
    features = (
        torch.randint(SYMBOLS, (12, *shape), generator=draw, dtype=torch.uint8) if "lstm" in name else None
    )
    samples = Samples(
        torch.randn(12, *shape, generator=draw, dtype=dtype) if features is None else features,
        torch.randint(classes, (12,), generator=draw),
    )
    vectors = torch.randn(SYMBOLS, EMBEDDING, generator=draw).to(dtype) if name == "sent_lstm" else None
    parts = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    made, plain = (build_module(spec, shape, classes, seed=1, vectors=vectors).to(dtype) for _ in range(2))
    return SupervisedProblem(
        divide(UndividedDataset(samples, samples, "noise", vectors=vectors), parts),
        made,
        spec.own_loss(),
        spec.l2,
    ), plain


def plain_gradient(name: str, module: nn.Module, samples: Samples) -> dict[str, Tensor]:
    l2 = CASES[name][0].get("l2", 0.0)
    loss = nn.functional.cross_entropy(module(samples.features), samples.labels)
    loss = loss + l2 / 2 * sum(parameter.square().sum() for parameter in module.parameters())
    names, parameters = zip(*module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LARGE else ()) for name in CASES]
)
def test_gradients_are_pytorchs(name: str) -> None:
    made, plain = problem(name)
    thetas = made.initial().repeat(3, 1)
    thetas[1] *= 1.1
    thetas[2] *= 0.9
    stacked = made.stack(np.arange(3), BATCHES).gradient(thetas, 0)
    for client, theta in enumerate(thetas):
        chosen = BATCHES[client, 0][BATCHES[client, 0] >= 0]
        one = made.gradient(theta, client, chosen)
        torch.testing.assert_close(stacked[client], one, rtol=0, atol=1e-9)
        torch.testing.assert_close(made.replica()(theta, client, chosen), one, rtol=0, atol=1e-9)
        plain.load_state_dict(made.named(theta))
        expected = plain_gradient(name, plain, made.samples(client).take(chosen))
        for parameter, value in made.named(one).items():
            torch.testing.assert_close(value, expected[parameter], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["char_lstm", "sent_lstm"])
def test_symbols_are_trained_on_in_the_precision_of_the_run(name: str) -> None:
    before: object = torch.backends.mkldnn.enabled
    made, _ = problem(name, torch.float32)
    assert made.initial().dtype == made.gradient(made.initial(), 0, None).dtype == torch.float32
    stacked = made.stack(np.arange(3), BATCHES).gradient(made.initial().repeat(3, 1), 0)
    torch.testing.assert_close(stacked[2], made.gradient(made.initial(), 2, None), rtol=0, atol=1e-6)
    assert torch.backends.mkldnn.enabled == before


def test_word_vectors_are_no_parameters() -> None:
    made, module = problem("sent_lstm")
    assert "vectors" not in made.named(made.initial())
    assert "vectors" not in dict(module.named_parameters())
    assert made.dim == sum(parameter.numel() for parameter in module.parameters())


def test_the_loss_of_the_sentiment_lstm_is_that_of_one_logistic_output() -> None:
    made, module = problem("sent_lstm")
    samples = made.samples(0)
    logits = module(samples.features)[:, 1]
    expected = nn.functional.binary_cross_entropy_with_logits(logits, samples.labels.double())
    torch.testing.assert_close(
        nn.functional.cross_entropy(module(samples.features), samples.labels), expected
    )
