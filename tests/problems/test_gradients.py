"""Modules of any make, for one thread and for others."""

from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcore import ExperimentSpec, Simulation
from fedcore.errors import SpecificationError
from fedcore.models.flat import Layout
from fedcore.models.losses import CrossEntropy
from fedcore.problems.gradients import Automatic
from fedcore.testing import runs
from tests.builders.specifications import DIGITS_CNN, QUADRATIC, SYNTHETIC, Document, merged, specification


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


# Gradients in bfloat16: near those of float32, the same bits after a resume.

FLOAT32: Document = {"execution": {"precision": "float32"}}
BF16: Document = {"execution": {"precision": "float32", "autocast": "bf16"}}
CASES = {
    "softmax regression": SYNTHETIC,
    "dense": merged(SYNTHETIC, {"problem": {"model": {"kind": "mlp", "hidden": [8]}}}),
    "convolutions": DIGITS_CNN,
}
ENGINES = ("reference", "parallel", "vectorised")
ROUNDING = 2.0**-8


def in_turn(first: int) -> list[Any]:
    """Each case in one engine after the other, and in the others at night."""
    return [
        pytest.param(
            case, engine, marks=() if (number + first) % len(ENGINES) == turn else pytest.mark.nightly
        )
        for number, case in enumerate(CASES)
        for turn, engine in enumerate(ENGINES)
    ]


def delta(spec: ExperimentSpec) -> Tensor:
    """The change of the parameters by training."""
    simulation = Simulation(spec, seed=0)
    start = torch.cat([value.flatten() for value in simulation.model().values()])
    while not simulation.finished:
        simulation.advance()
    end = torch.cat([value.flatten() for value in simulation.model().values()])
    assert end.dtype == torch.float32
    return end - start


@pytest.mark.parametrize(("case", "engine"), in_turn(0))
def test_training_in_bfloat16_is_training_in_float32_up_to_rounding(case: str, engine: str) -> None:
    document = merged(CASES[case], {"execution": {"engine": engine}})
    expected = delta(specification(merged(document, FLOAT32)))
    found = delta(specification(merged(document, BF16)))
    difference = float((found - expected).norm() / expected.norm())
    assert 0 < difference < 8 * ROUNDING


@pytest.mark.parametrize(("case", "engine"), in_turn(1))
def test_a_run_in_bfloat16_goes_on_from_any_round_to_the_bit(case: str, engine: str) -> None:
    document = merged(merged(CASES[case], BF16), {"execution": {"engine": engine}, "rounds": 2})
    runs.resumes_at_every_round(lambda: specification(document))


@pytest.mark.parametrize(
    ("document", "changes", "pointer"),
    [
        (SYNTHETIC, {"execution": {"autocast": "bf16"}}, "/execution/autocast"),
        (QUADRATIC, {"execution": {"autocast": "bf16"}}, "/execution/autocast"),
        (SYNTHETIC, merged(BF16, {"execution": {"engine": "compiled"}}), "/execution/engine"),
    ],
)
def test_specifications_that_bfloat16_cannot_compute_are_rejected(
    document: Document, changes: Document, pointer: str
) -> None:
    with pytest.raises(SpecificationError) as refused:
        specification(document, **changes)
    assert refused.value.pointer == pointer
