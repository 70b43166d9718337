"""The engines by name: what each trains, and which is presumed to be the fastest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fedcore.core import Algorithm
from fedcore.engine.accelerated.compiled import compiled, suits
from fedcore.engine.assignment import Engine
from fedcore.engine.parallel import parallel
from fedcore.engine.reference import reference
from fedcore.engine.vectorised import vectorised
from fedcore.errors import SpecificationError
from fedcore.problems import TrainingProblem

EngineName = Literal["reference", "parallel", "vectorised", "compiled"]


def _anything(_algorithm: Algorithm, _problem: TrainingProblem) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself."""

    train: Engine
    suits: Callable[[Algorithm, TrainingProblem], bool] = _anything
    """Whether it can train this problem by this algorithm, where the problem is."""
    made_for: str = "any problem"
    contends: bool = True
    """Whether `auto` may take it."""


ENGINE_INFO: Mapping[EngineName, EngineInfo] = {
    "reference": EngineInfo(reference, contends=False),
    "parallel": EngineInfo(parallel),
    "vectorised": EngineInfo(vectorised),
    "compiled": EngineInfo(
        compiled,
        suits,
        "dense networks (`linear`, `logistic`, `mlp`) on a CPU and small `logistic` models on a GPU",
    ),
}
ENGINES: Mapping[EngineName, Engine] = {name: declared.train for name, declared in ENGINE_INFO.items()}


def candidates(algorithm: Algorithm, problem: TrainingProblem) -> list[EngineName]:
    """The engines that `auto` may take, the one that is presumed to be the fastest first.

    Presumed by `python -m bench engines`: what is made for few problems, then the problem's own
    choice, then the others.
    """
    able = [
        name
        for name, declared in ENGINE_INFO.items()
        if declared.contends and declared.suits(algorithm, problem)
    ]
    return sorted(able, key=lambda name: (ENGINE_INFO[name].suits is _anything, name != problem.engine))


def resolve_engine(
    wanted: Literal["auto"] | EngineName, algorithm: Algorithm, problem: TrainingProblem
) -> EngineName:
    """The engine asked for, or the one presumed to be the fastest.

    Raises SpecificationError where it is not made for the problem.
    """
    if wanted == "auto":
        return candidates(algorithm, problem)[0]
    if not ENGINE_INFO[wanted].suits(algorithm, problem):
        raise SpecificationError(
            "/execution/engine", f"`{wanted}` is made for {ENGINE_INFO[wanted].made_for}; use `auto`"
        )
    return wanted


def benefits_from_batching(engine: EngineName, device: torch.device) -> bool:
    """Whether runs go faster when the engine is given several at once on `device`.

    In one stack, as programs of one launch, or on threads that the clients of one would not fill.
    """
    if device.type == "cuda":
        return engine in {"vectorised", "compiled"}
    return engine == "vectorised" or (engine != "reference" and torch.get_num_threads() > 1)
