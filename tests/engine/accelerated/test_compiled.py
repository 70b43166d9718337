"""Dense networks in machine code: the same as the loop, however a client's work looks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.core import ClientContext, ClientRule
from fedcore.engine.affine import has_offset, proximal_coefficient
from fedcore.engine.engines import resolve_engine
from fedcore.engine.schedule import StepSizes
from fedcore.errors import SpecificationError
from tests.documents import ALGORITHMS, DIGITS_CNN, QUADRATIC, SYNTHETIC, Document, merged, specification

WORK: dict[str, Document] = {
    "short last batches": {},
    "full batches, all alike": {"local": {"epochs": None, "steps": 4, "batch_size": "full"}},
    "momentum, weight decay and a proximal term": {
        "local": {
            "lr": None,
            "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "prox_mu": 0.1},
        }
    },
    "a step size that shrinks": {"local": {"lr_schedule": {"kind": "exponential", "gamma": 0.9}}},
    "a step size by the clock": {
        "local": {"lr": None, "lr_schedule": {"kind": "inverse_time", "mu": 1.0, "gamma": 500.0}}
    },
    "a regularised model": {"problem": {"model": {"l2": 0.1}}},
    "hidden layers": {"problem": {"model": {"kind": "mlp", "hidden": [9, 5], "l2": 0.1}}},
    "squared errors": {"problem": {"model": {"kind": "linear"}}},
    "the transformed objective": {
        "problem": {"model": {"l2": 0.1}},
        "participation": {"kind": "without_replacement", "clients_per_round": 4, "transformed": True},
    },
    "unequal steps": {
        "local": {"epochs": None, "steps": 3},
        "systems": {"stragglers": None, "steps": {"kind": "per_client", "values": [1, 9, 2, 30, 4, 1, 7, 5]}},
    },
}
MLP: Document = {"problem": {"model": {"kind": "mlp", "hidden": [3]}}}
TRAINED_ON = ("fedavg", "scaffold", "fedlin")
"""A plain rule, one with an offset, and one that compares gradients at its own pace."""


def trained(engine: str, **changes: Any) -> Tensor:
    # The largest batches that leave every client a short last one.
    short = merged(SYNTHETIC, {"local": {"batch_size": 50}, "rounds": 3, "execution": {"engine": engine}})
    simulation = Simulation(specification(short, **changes), seed=0)
    while not simulation.finished:
        simulation.advance()
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kind", TRAINED_ON)
def test_it_is_the_loop(kind: str, work: str) -> None:
    changes = {"algorithm": {"kind": kind}, **WORK[work]}
    torch.testing.assert_close(
        trained("compiled", **changes), trained("reference", **changes), rtol=0, atol=1e-11
    )


def test_in_single_precision_it_is_the_loop_to_rounding() -> None:
    compiled, reference = (
        trained(engine, execution={"engine": engine, "precision": "float32"})
        for engine in ("compiled", "reference")
    )
    torch.testing.assert_close(compiled, reference, rtol=1e-4, atol=1e-5)


def test_threads_change_no_bit(two_threads: None) -> None:
    together = trained("compiled", algorithm={"kind": "scaffold"})
    torch.set_num_threads(1)
    assert torch.equal(trained("compiled", algorithm={"kind": "scaffold"}), together)


def test_a_run_that_diverges_shows() -> None:
    simulation = Simulation(
        specification(SYNTHETIC, local={"lr": 1e6}, problem={"model": {"l2": 1.0}}, rounds=200), seed=0
    )
    while not simulation.finished:
        simulation.advance()
    assert simulation.engine == "compiled"
    assert simulation.diverged


def test_auto_takes_it_where_it_can() -> None:
    assert Simulation(specification(SYNTHETIC), seed=0).engine == "compiled"
    assert Simulation(specification(QUADRATIC), seed=0).engine == "vectorised"
    assert Simulation(specification(SYNTHETIC, **MLP), seed=0).engine == "compiled"


@pytest.mark.parametrize("document", [QUADRATIC, DIGITS_CNN])
def test_where_it_cannot_it_is_refused(document: Document) -> None:
    with pytest.raises(SpecificationError, match="dense networks") as refused:
        specification(document, execution={"engine": "compiled"})
    assert refused.value.pointer == "/execution/engine"


ADDING = {"scaffold", "fedlin", "feddyn", "fedsplit", "vrlsgd", "fedsvrg"}
"""Algorithms whose rules add something of their own to gradient and pull."""


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_it_is_known_of_a_rule_whether_it_adds_anything(kind: str) -> None:
    assert has_offset(
        specification(SYNTHETIC, algorithm={"kind": kind, **PARAMETERS.get(kind, {})}).build().rule
    ) == (kind in ADDING)


PULLS = {"feddyn": 0.25, "fedprox": 0.25, "fedsplit": 4.0}
"""Of alpha = mu = 1/s = 1/4."""
PARAMETERS = {"feddyn": {"alpha": 0.25}, "fedprox": {"mu": 0.25}, "fedsplit": {"s": 0.25}}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_rule_of_the_catalogue_is_affine(kind: str) -> None:
    rule = specification(SYNTHETIC, algorithm={"kind": kind, **PARAMETERS.get(kind, {})}).build().rule
    assert proximal_coefficient(rule) == pytest.approx(PULLS.get(kind, 0.0), abs=1e-15)


class Normalised(ClientRule):
    """Steps of equal length."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad / abs(grad) if grad else grad


class Scaled(ClientRule):
    """A gradient scaled by what the client remembers."""

    def memory(self) -> tuple[str, ...]:
        return ("scale",)

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad * (1 + context.memory["scale"])


@pytest.mark.parametrize("rule", [Normalised(), Scaled()])
def test_a_rule_of_another_form_is_known_as_such_and_left_to_another_engine(rule: ClientRule) -> None:
    assert proximal_coefficient(rule) is None
    simulation = Simulation(specification(SYNTHETIC), seed=0)
    algorithm = type(simulation._setting.algorithm)(rule=rule)
    assert resolve_engine("auto", algorithm, simulation._setting.problem) == "vectorised"
    with pytest.raises(SpecificationError, match="/execution/engine"):
        resolve_engine("compiled", algorithm, simulation._setting.problem)


@pytest.mark.parametrize("sizes", [StepSizes(0.5), StepSizes(0.5, decay=0.9), StepSizes(0.5, offset=7.0)])
def test_step_sizes_come_one_by_one_or_together(sizes: StepSizes) -> None:
    np.testing.assert_array_equal(sizes.first_of(5), [sizes[k] for k in range(5)])
