"""Modules of any make, for one thread and for others."""

from threading import Lock

import pytest
import torch
from torch import Tensor, nn

from fedcore.errors import SpecificationError
from fedcore.models.flat import Layout
from fedcore.models.losses import CrossEntropy
from fedcore.problems.gradients import Automatic


class Scaled(nn.Module):
    """A dense layer behind a fixed vector, whatever else it holds."""

    scale: Tensor

    def __init__(self, other: object) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0]), persistent=False)
        self.dense, self.other = nn.Linear(2, 3), other

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, 2] to scores [B, 3]."""
        scores: Tensor = self.dense(features * self.scale)
        return scores


def test_a_replica_shares_the_tensors_and_not_the_module() -> None:
    module = Scaled(None)
    replica = Automatic(module, Layout(module), CrossEntropy()).replica()
    assert replica._module is not module
    own, others = ([*made.parameters(), *made.buffers()] for made in (module, replica._module))
    assert [tensor.data_ptr() for tensor in own] == [tensor.data_ptr() for tensor in others]


def test_a_module_that_cannot_be_copied_is_refused_with_a_way_out() -> None:
    module = Scaled(Lock())
    with pytest.raises(SpecificationError, match="leave out what cannot") as refused:
        Automatic(module, Layout(module), CrossEntropy()).replica()
    assert refused.value.pointer == "/problem/model"
