"""The engines by name: and the problems each supports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fedcore.core import Algorithm
from fedcore.engine.assignment import Engine
from fedcore.engine.client_by_client import parallel, reference
from fedcore.engine.vectorised import vectorised
from fedcore.errors import SpecificationError
from fedcore.problems import TrainingProblem

EngineName = Literal["reference", "parallel", "vectorised", "compiled"]


def _anything(_algorithm: Algorithm, _problem: TrainingProblem) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine and its properties."""

    train: Engine
    suits: Callable[[Algorithm, TrainingProblem], bool] = _anything
    """Returns True if the engine supports this problem with this algorithm."""
    made_for: str = "any problem"


def _stackable(_algorithm: Algorithm, problem: TrainingProblem) -> bool:
    return problem.stackable


def _accelerated() -> dict[EngineName, EngineInfo]:
    """The engines of `fedcore.engine.accelerated`; none in an installation without it."""
    try:
        from fedcore.engine.accelerated.compiled import compiled, suits
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("fedcore.engine.accelerated"):
            raise
        return {}
    made_for = "dense networks (`linear`, `logistic`, `mlp`) on a CPU"
    return {"compiled": EngineInfo(compiled, suits, made_for)}


ENGINE_INFO: Mapping[EngineName, EngineInfo] = {
    "reference": EngineInfo(reference),
    "parallel": EngineInfo(parallel),
    "vectorised": EngineInfo(
        vectorised,
        _stackable,
        "networks, losses and objectives that `torch.func.vmap` can differentiate; on a CPU with `autocast`,"
        " not layer norm",
    ),
    **_accelerated(),
}
ENGINES: Mapping[EngineName, Engine] = {name: declared.train for name, declared in ENGINE_INFO.items()}


def supports(engine: EngineName, algorithm: Algorithm, problem: TrainingProblem) -> bool:
    """Return True if the engine is installed and supports this problem with this algorithm."""
    return engine in ENGINE_INFO and ENGINE_INFO[engine].suits(algorithm, problem)


def check_supported(wanted: EngineName, algorithm: Algorithm, problem: TrainingProblem) -> None:
    """Raise SpecificationError if an engine is not installed or does not support the problem."""
    if wanted not in ENGINE_INFO:
        raise SpecificationError("/execution/engine", f"`{wanted}` is not installed; use `auto`")
    if not supports(wanted, algorithm, problem):
        raise SpecificationError(
            "/execution/engine",
            f"`{wanted}` is made for {ENGINE_INFO[wanted].made_for}; use `auto` or `parallel`",
        )


def benefits_from_batching(engine: EngineName, device: torch.device) -> bool:
    """Return True if runs go faster when the engine is given several at once on `device`: in one
    stack, or on threads that the clients of one run would not fill.
    """
    if engine == "vectorised" or device.type == "cuda":
        return engine == "vectorised"
    return engine != "reference" and torch.get_num_threads() > 1
