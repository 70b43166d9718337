"""The GPU's kernel, carried out by Triton's interpreter on this machine's CPU: the same as the
loop, for every algorithm.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

import fedcore.engine.accelerated.gpu
from fedcore import Simulation
from fedcore.engine.accelerated.gpu import launch
from fedcore.engine.assignment import Job
from fedcore.engine.engines import ENGINES
from fedcore.engine.round import open_round
from fedcore.spec import ExperimentSpec
from tests.documents import COMPILED, SYNTHETIC, Document, merged, specification
from tests.support.simulated_device import Resident, SimulatedDevice

pytest.importorskip("triton", "3.5", reason="Triton comes with PyTorch's CUDA builds, float64 with 3.5")
tl = pytest.importorskip("triton.language")
interpreter = pytest.importorskip("triton.runtime.interpreter")

SHORT: Document = {
    "local": {"epochs": None, "steps": 2},
    "systems": {"stragglers": None, "steps": {"kind": "per_client", "values": [3, 1, 1, 1, 1, 1, 1, 2]}},
    "participation": {"kind": "trace", "rounds": [[0, 7], [5, 7]]},
    "rounds": 2,
}
"""The interpreter takes some hundredths of a second for a step."""
WORK: dict[str, Document] = {
    "momentum, weight decay and a proximal term": {
        "local": {
            "lr": None,
            "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "prox_mu": 0.1},
        },
        "problem": {"model": {"l2": 0.1}},
    },
    "full batches, in several parts, and the same in every step": {"local": {"batch_size": "full"}},
    "short last batches and steps that shrink": {
        "local": {
            "epochs": 1,
            "steps": None,
            "batch_size": 24,
            "lr_schedule": {"kind": "exponential", "gamma": 0.9},
        },
        "systems": {"steps": None},
        "rounds": 1,
    },
    "the transformed objective": {
        "problem": {"model": {"l2": 0.1}},
        "participation": {"kind": "without_replacement", "clients_per_round": 4, "transformed": True},
    },
    "clients that start from models of their own, in an asynchronous run": {
        "algorithm": {"kind": "fedprox", "mu": 0.1},
        "participation": {"kind": "full"},
        "systems": {"devices": {"steps_per_second": {"kind": "log_normal", "median": 5.0, "sigma": 1.0}}},
        "asynchrony": {"kind": "fedbuff", "concurrency": 5, "buffer": 3},
        "rounds": 3,
    },
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine `compiled` is the GPU's, its kernel interpreted."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("max", "sum", "zeros"):  # Triton's own kernels are what they were when it was imported
        monkeypatch.setattr(tl, name, interpreter.InterpretedFunction(getattr(tl, name).fn))
    name = "fedcore.engine.accelerated.gpu.kernels"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(
        fedcore.engine.accelerated.gpu, "kernels", importlib.import_module(name), raising=False
    )
    monkeypatch.setattr(launch, "shared_memory", lambda _: 227 << 10)
    monkeypatch.setitem(ENGINES, "compiled", launch.train)
    with _language_restored():
        yield
    del sys.modules[name]


@contextmanager
def _language_restored() -> Iterator[None]:
    """The interpreter leaves its own functions in Triton's language, with which nothing can be
    compiled any more in this process.
    """
    later = (getattr(tl.core, name, tl) for name in ("condition", "tensor_descriptor_base"))
    places = dict.fromkeys((tl, tl.core, tl.math, tl.tensor, tl.dtype, *later))
    before = [dict(vars(place)) for place in places]
    try:
        yield
    finally:
        for place, known in zip(places, before, strict=True):
            for name in vars(place).keys() - known.keys():
                delattr(place, name)
            for name, value in known.items():
                if vars(place)[name] is not value:
                    setattr(place, name, value)


def model(simulation: Simulation) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


def trained(spec: ExperimentSpec) -> Tensor:
    simulation = Simulation(spec, seed=0)
    while not simulation.finished:
        simulation.advance()
    return model(simulation)


def short(engine: str, **changes: Any) -> ExperimentSpec:
    return specification(merged(SYNTHETIC, SHORT), **merged({"execution": {"engine": engine}}, changes))


@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in ("fedavg", "fedprox", "scaffold", "fedlin")
        else pytest.param(kind, marks=pytest.mark.nightly)
        for kind in COMPILED
    ],
)
def test_it_is_the_loop(kind: str) -> None:
    algorithm = {"kind": kind}
    torch.testing.assert_close(
        trained(short("compiled", algorithm=algorithm)),
        trained(short("reference", algorithm=algorithm)),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("work", WORK)
def test_it_is_the_loop_however_the_work_looks(work: str) -> None:
    changes = merged({"algorithm": {"kind": "fedsvrg"}}, WORK[work])
    torch.testing.assert_close(
        trained(short("compiled", **changes)), trained(short("reference", **changes)), rtol=0, atol=1e-12
    )


def test_in_single_precision_it_is_the_loop_to_rounding() -> None:
    single = {"execution": {"precision": "float32"}, "rounds": 1}
    torch.testing.assert_close(
        trained(short("compiled", **merged(single, {"execution": {"engine": "compiled"}}))),
        trained(short("reference", **merged(single, {"execution": {"engine": "reference"}}))),
        rtol=1e-5,
        atol=1e-6,
    )


def job(seed: int, device: str = "cpu", **changes: Any) -> Job:
    simulation = Simulation(short("vectorised", rounds=1, **changes), seed, device=device)
    opened = open_round(simulation._setting, simulation._server, simulation._clients, simulation._traffic, 1)
    assert opened.job is not None
    return opened.job


class Unwrapped:
    """The kernel, handed the numbers of tensors that are on a simulated device."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launched(*args: Any, **options: Any) -> None:
            with _disable_current_modes():
                self._kernel[grid](
                    *(part.numbers if isinstance(part, Resident) else part for part in args), **options
                )

        return launched


@pytest.mark.parametrize("kind", ["fedavg", "scaffold", "fedsvrg"])
def test_a_launch_leaves_nothing_on_the_host_and_waits_for_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here,) = launch.train([job(0, algorithm={"kind": kind})])
    kernels = sys.modules["fedcore.engine.accelerated.gpu.kernels"]
    monkeypatch.setattr(kernels, "train", Unwrapped(kernels.train))
    with SimulatedDevice() as device:
        there_too = job(0, "meta", algorithm={"kind": kind})
        device.reads.clear()
        (there,) = launch.train([there_too])
        assert not device.reads
        assert torch.equal(there.delta.cpu(), here.delta)


def test_who_else_is_in_a_launch_changes_no_bit() -> None:
    jobs = [
        job(0),
        job(1, algorithm={"kind": "scaffold"}),
        job(0, algorithm={"kind": "fedsvrg"}),
        job(2, local={"steps": 1}),
    ]
    for one, together in zip(jobs, launch.train(jobs), strict=True):
        (alone,) = launch.train([one])
        assert torch.equal(together.delta, alone.delta)
