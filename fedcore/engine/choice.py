"""Choose the engine of a run by a rule, and record why.

The rule knows the model, the algorithms of all arms and the device, and nothing of time: one
specification has one engine on machines of one kind, whatever else they do and however many
processes or threads compute it.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError

from fedcore.core import Algorithm
from fedcore.engine.engines import EngineName, check_supported, supports
from fedcore.problems import TrainingProblem
from fedcore.spec.engines import ArmFacts

STACKED_PARAMETERS = 100_000
"""Dense networks with more parameters are trained client by client on a CPU: stacked, their steps read
all models of a cohort from memory (`python -m bench engines`, rows `mlp`).
"""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and how it was chosen."""

    engine: EngineName
    how: Literal["forced", "rule"]
    """`forced` by the specification, or by the `rule`."""
    instead_of: EngineName | None = None
    """The engine that played the run's first rounds, where that cannot play on here: bits differ
    from there on.
    """

    def document(self) -> dict[str, Any]:
        """Return the choice as it is recorded."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, document: object) -> "EngineChoice | None":
        """Read a recorded choice; None if there is none, or its engine is of another version."""
        try:
            return TypeAdapter(cls).validate_python(document)
        except ValidationError:
            return None


def choose_engine(
    wanted: Literal["auto"] | EngineName,
    algorithm: Algorithm,
    problem: TrainingProblem,
    device: torch.device,
    arms: ArmFacts,
    choice: EngineChoice | None = None,
) -> EngineChoice:
    """Return the engine requested, or recorded with the run's earlier rounds, or that of the rule.

    Raises SpecificationError if the requested engine does not support the problem.
    """
    if wanted != "auto":
        check_supported(wanted, algorithm, problem)
        return EngineChoice(wanted, "forced")
    if choice is not None and supports(choice.engine, algorithm, problem):
        return choice
    chosen = EngineChoice(engine_by_rule(algorithm, problem, device, arms), "rule")
    return chosen if choice is None else replace(chosen, instead_of=choice.engine)


def engine_by_rule(
    algorithm: Algorithm, problem: TrainingProblem, device: torch.device, arms: ArmFacts
) -> EngineName:
    """Return the engine that is the fastest in most cases among the engines that suit all arms.

    On a CPU, machine code wins wherever it can be used. Small products are faster stacked, as long as
    the models of a cohort stay in the cache; other models are trained client by client. A GPU trains
    everything faster in stacks but recurrent layers, for which it has kernels of their own.
    """
    on_cpu = device.type == "cpu"
    if on_cpu and arms.compiled and supports("compiled", algorithm, problem):
        return "compiled"
    fits = not on_cpu or (arms.stacked and arms.parameters <= STACKED_PARAMETERS)
    stacked = fits and problem.engine == "vectorised" and supports("vectorised", algorithm, problem)
    return "vectorised" if stacked else "parallel"
