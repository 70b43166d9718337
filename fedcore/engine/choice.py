"""Choose the engine of a run, and record why."""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError

from fedcore.core import Algorithm
from fedcore.engine.assignment import Job
from fedcore.engine.benchmark import (
    HELD_BYTES,
    BenchmarkCache,
    EngineTimer,
    benchmark_engines,
    fastest,
    round_seconds,
    time_engine,
)
from fedcore.engine.engines import EngineName, candidates, check_supported, supports
from fedcore.engine.process_tuning import release_freed_memory
from fedcore.problems import TrainingProblem

WORTH_S = 1.0
"""A run that trains for less time than this is not worth a measurement."""
_LIBRARIES = "fedq", "numpy", "torch", "numba"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and how it was chosen."""

    engine: EngineName
    how: Literal["forced", "presumed", "measured", "remembered"]
    """`forced` by the specification; `presumed` to be the fastest, where there is no other or the
    run is too short to measure; `measured` for this run; `remembered` from a run like it.
    """
    seconds: Mapping[EngineName, float] | None = None
    """Per local step, of the engines that were measured."""
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


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """The facts that an engine is chosen by."""

    algorithm: Algorithm
    problem: TrainingProblem
    rounds: int
    sample: Callable[[], Job | None]
    """The training of a first round, used only for measuring; None if no client takes part in it.
    """
    held_bytes: int = HELD_BYTES
    """Memory that a measurement may take beside the data."""


def choose_engine(
    wanted: Literal["auto"] | EngineName,
    context: SelectionContext,
    cache: BenchmarkCache,
    recorded: EngineChoice | None = None,
    play: EngineTimer = time_engine,
) -> EngineChoice:
    """Return the engine requested, or recorded with the run's earlier rounds, or else the fastest
    as measured or remembered.

    Raises SpecificationError if the requested engine does not support the problem.
    """
    algorithm, problem = context.algorithm, context.problem
    if wanted != "auto":
        check_supported(wanted, algorithm, problem)
        return EngineChoice(wanted, "forced")
    if recorded is None:
        return _fastest(context, cache, play)
    if supports(recorded.engine, algorithm, problem):
        return recorded
    return replace(_fastest(context, cache, play), instead_of=recorded.engine)


def _fastest(context: SelectionContext, cache: BenchmarkCache, play: EngineTimer) -> EngineChoice:
    names = candidates(context.algorithm, context.problem)
    job = context.sample() if len(names) > 1 else None
    if job is None:
        return EngineChoice(names[0], "presumed")
    what = conditions(names, job)
    if known := cache.get(what):
        return EngineChoice(known.engine, "remembered", known.seconds)
    round_s = cache.round_seconds(what, partial(round_seconds, names[0], job, play))
    if context.rounds * round_s < WORTH_S:
        return EngineChoice(names[0], "presumed")
    seconds = benchmark_engines(names, job, round_s, play, context.held_bytes)
    # The engines that were not chosen may have taken gigabytes.
    release_freed_memory()
    kept = cache.put(what, fastest(names, seconds), seconds)
    return EngineChoice(kept.engine, "measured", kept.seconds)


def conditions(
    names: list[EngineName], job: Job, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return all facts that the fastest engine depends on; sizes that vary from round to round are
    rounded to powers of two. `versions` are those of the libraries (default: the installed ones).
    """
    problem, assignment, solver = job.problem, job.work, job.algorithm.solver
    x = assignment.local.x
    return {
        "engines": sorted(names),
        "problem": type(problem).__name__,
        "model": {name: list(value.shape) for name, value in problem.named(problem.initial()).items()},
        "capacity": problem.capacity,
        "views": problem.views,
        "rule": type(job.algorithm.rule).__name__,
        "solver": [
            type(solver).__name__,
            bool(solver.momentum_form()),
            solver.weight_decay > 0,
            solver.prox_mu > 0,
            solver.clip_norm is not None,
        ],
        "clients": len(assignment.clients).bit_length(),
        "batch": max(int(batch.shape[1]) for batch in assignment.batches).bit_length(),
        "steps": [int(assignment.steps.max()).bit_length(), int(assignment.steps.mean()).bit_length()],
        "dtype": str(x.dtype),
        "device": torch.cuda.get_device_name(x.device) if x.device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "versions": versions or _versions(),
    }


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES} | {"python": platform.python_version()}


@cache
def _processor() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {os.cpu_count()} cores"
