"""Dense networks in machine code: the same as the loop, however a client's work looks."""

from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.errors import SpecificationError
from tests.builders.specifications import DIGITS_CNN, QUADRATIC, SYNTHETIC, Document, merged, specification

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


@pytest.mark.parametrize(("work", "kind"), [*zip(WORK, cycle(TRAINED_ON), strict=False)])
def test_compiled_engine_is_the_loop(kind: str, work: str) -> None:
    assert_loop(kind, work)


@pytest.mark.nightly
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kind", TRAINED_ON)
def test_compiled_engine_is_the_loop_for_every_rule(kind: str, work: str) -> None:
    assert_loop(kind, work)


def assert_loop(kind: str, work: str) -> None:
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
    assert simulation.facts.choice.engine == "compiled"
    assert simulation.facts.diverged


def test_auto_takes_it_where_it_can() -> None:
    assert Simulation(specification(SYNTHETIC), seed=0).facts.choice.engine == "compiled"
    assert Simulation(specification(QUADRATIC), seed=0).facts.choice.engine == "vectorised"
    assert Simulation(specification(SYNTHETIC, **MLP), seed=0).facts.choice.engine == "compiled"


@pytest.mark.parametrize("document", [QUADRATIC, DIGITS_CNN])
def test_where_it_cannot_it_is_refused(document: Document) -> None:
    with pytest.raises(SpecificationError, match="dense networks") as refused:
        specification(document, execution={"engine": "compiled"})
    assert refused.value.pointer == "/execution/engine"
