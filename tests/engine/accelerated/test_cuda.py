"""On a real GPU; skipped where there is none. `make gpu` runs it, and measures."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.engine.engines import EngineName
from fedcore.errors import SpecificationError
from fedcore.spec import ExperimentSpec
from tests.builders.specifications import ALGORITHMS, SYNTHETIC, Document, merged, specification

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

ON_GPUS: tuple[EngineName, ...] = ("reference", "parallel", "vectorised")
MOMENTUM: Document = {"local": {"optimizer": {"momentum": 0.9, "prox_mu": 0.1, "weight_decay": 1e-3}}}
CNN: Document = {
    "name": "a small CNN on digits",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"kind": "cnn", "channels": [4, 4], "hidden": [8]},
    },
    "algorithm": {"kind": "scaffold"},
    "local": {"lr": 0.05, "steps": 4, "batch_size": 16},
    "rounds": 3,
    "execution": {"precision": "float64"},
}


def simulated(spec: ExperimentSpec, device: str, seed: int = 3) -> Simulation:
    simulation = Simulation(spec, seed, device=device)
    while not simulation.finished:
        simulation.advance()
    return simulation


def model(simulation: Simulation) -> Tensor:
    return torch.cat([parameter.flatten().cpu() for parameter in simulation.model().values()])


def engine(name: str, **execution: Any) -> Document:
    return {"execution": {"engine": name, **execution}}


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("name", ON_GPUS)
def test_every_algorithm_is_the_cpus_loop_by_every_engine(kind: str, name: EngineName) -> None:
    changes = merged(MOMENTUM, {"algorithm": {"kind": kind}})
    there = model(simulated(specification(SYNTHETIC, **merged(changes, engine(name))), "cuda"))
    here = model(simulated(specification(SYNTHETIC, **merged(changes, engine("reference"))), "cpu"))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ON_GPUS)
def test_convolutional_network_is_the_cpus_loop_by_every_engine(name: EngineName) -> None:
    there, here = (
        model(simulated(specification(CNN, **engine(by)), device))
        for by, device in ((name, "cuda"), ("reference", "cpu"))
    )
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ON_GPUS)
def test_single_precision_is_not_tensorfloat(name: EngineName) -> None:
    single = merged(CNN, engine(name, precision="float32"))
    there, here = (model(simulated(specification(single), device)) for device in ("cuda", "cpu"))
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(name: EngineName) -> None:
    spec = specification(CNN, **engine(name, precision="float32"))
    first = Simulation(spec, 0, device="cuda")
    first.advance()
    second = Simulation(spec, 0, device="cuda")
    second.restore(first.checkpoint())
    for simulation in (first, second):
        while not simulation.finished:
            simulation.advance()
    assert torch.equal(model(first), model(second))


def test_machine_code_is_made_for_cpus_and_auto_does_without() -> None:
    with pytest.raises(SpecificationError, match="`compiled` is made for"):
        Simulation(specification(SYNTHETIC, **engine("compiled")), 3, device="cuda")
    assert simulated(specification(SYNTHETIC, **engine("auto")), "cuda").facts.choice.engine in ON_GPUS


@pytest.mark.parametrize("name", ON_GPUS)
def test_clients_that_start_from_models_of_their_own_are_the_cpus_loop(name: EngineName) -> None:
    """Those of an asynchronous run, which started at different steps of the server."""
    spec: Document = {
        "participation": {"kind": "full"},
        "systems": {
            "stragglers": None,
            "devices": {"steps_per_second": {"kind": "log_normal", "median": 5.0, "sigma": 1.0}},
        },
        "asynchrony": {"kind": "fedbuff", "concurrency": 5, "buffer": 3},
        "rounds": 6,
    }
    changes = merged(MOMENTUM, spec)
    there = model(simulated(specification(SYNTHETIC, **merged(changes, engine(name))), "cuda"))
    here = model(simulated(specification(SYNTHETIC, **merged(changes, engine("reference"))), "cpu"))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-9)
