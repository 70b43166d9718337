"""The engines by name, and which of them carries a run out."""

from collections.abc import Mapping
from typing import Literal

import torch

from fedcore.core import Algorithm
from fedcore.engine.assignment import Engine
from fedcore.engine.compiled import compiled, suits
from fedcore.engine.parallel import parallel
from fedcore.engine.reference import reference
from fedcore.engine.vectorised import vectorised
from fedcore.errors import SpecificationError
from fedcore.problems import Problem

EngineName = Literal["reference", "parallel", "vectorised", "compiled"]

ENGINES: Mapping[EngineName, Engine] = {"reference": reference, "parallel": parallel, "vectorised": vectorised, "compiled": compiled}


def pick(wanted: Literal["auto"] | EngineName, algorithm: Algorithm, problem: Problem) -> EngineName:
    """The engine that was asked for, or the fastest; raises SpecificationError where it is not made for the problem.

    As measured by `python -m bench engines`: machine code where there is any, else the problem's own choice.
    """
    if wanted == "auto":
        return "compiled" if suits(algorithm, problem) else problem.engine
    if wanted == "compiled" and not suits(algorithm, problem):
        raise SpecificationError(
            "/execution/engine",
            "`compiled` is made for dense networks (`linear`, `logistic`, `mlp`) on a CPU and small `logistic` models on a GPU; use `auto`",
        )
    return wanted


def pays(engine: EngineName) -> bool:
    """Whether runs go faster when the engine is given several at once: in one stack, or on threads that clients of one would not fill."""
    return engine == "vectorised" or (engine != "reference" and torch.get_num_threads() > 1)
