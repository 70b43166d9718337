"""Forward passes in training."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedcore.models.forward import BatchStatistics, TrainingForward

COUNT = 20_000


def forgetful(inputs: Tensor, p: float) -> list[Tensor]:
    """Dropout of features, and of channels."""
    uniform = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(0))
    with TrainingForward(lambda shape: uniform[: shape[0]].view(shape), BatchStatistics({}), None):
        return [functional.dropout(inputs, p), functional.dropout1d(inputs[:, None, None], p)[:, 0, 0]]


@pytest.mark.parametrize("p", [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
def test_kept_features_in_bfloat16_are_scaled_to_the_expectation_of_all(p: float) -> None:
    """Each is rounded, half of them up: the mean of the relative errors vanishes, and none is above half
    a unit in the last place.
    """
    inputs = torch.linspace(1, 2, COUNT).bfloat16()
    for output in forgetful(inputs, p):
        assert output.dtype == torch.bfloat16
        kept = output != 0
        scaled = output[kept].double() / inputs[kept].double() * (1 - p)
        assert float((scaled - 1).abs().max()) <= 2.0**-8
        assert float(scaled.mean()) == pytest.approx(1, abs=3e-4)


def test_alpha_dropout_in_bfloat16_keeps_mean_and_variance() -> None:
    inputs = torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
    uniform = torch.rand(COUNT, generator=torch.Generator().manual_seed(2))
    outputs = []
    for given in (inputs.bfloat16(), inputs.bfloat16().float()):
        with TrainingForward(lambda _shape: uniform, BatchStatistics({}), None):
            outputs.append(nn.AlphaDropout(0.3)(given))
    assert outputs[0].dtype == torch.bfloat16
    torch.testing.assert_close(outputs[0], outputs[1].bfloat16(), rtol=0, atol=0)
