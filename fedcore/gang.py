"""Gangs: runs of one experiment that advance in lockstep, and an experiment carried out in gangs."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fedcore.engine.gang import train
from fedcore.errors import SpecificationError
from fedcore.experiment import Simulation
from fedcore.report import RoundReport
from fedcore.settings import settings
from fedcore.spec import ExperimentSpec
from fedcore.spec.experiment import Arm


def advance(simulations: Sequence[Simulation]) -> list[RoundReport]:
    """Play the next round of each, which may be another for each, and train them together.

    Where an engine promises bits, they are those of every run by itself; else they are so to rounding.
    """
    opened = [simulation.begin() for simulation in simulations]
    members = zip(simulations, opened, train(opened), strict=True)
    return [simulation.end(round, trained) for simulation, round, trained in members]


def alike(spec: ExperimentSpec) -> Hashable:
    """What runs have in common that are worth training together."""
    problem, execution = spec.problem, spec.execution
    return repr((problem.dataset, problem.model)), execution.engine, spec.precision


def run(spec: ExperimentSpec, resume: Path | None = None) -> Iterator[RoundReport]:
    """Carry out every arm with every seed; one report per round.

    Runs come one after another, or in gangs where that is faster: then the reports of a round follow one another. `resume` is
    a checkpoint to go on from, for a specification of a single run. Raises SpecificationError, DataUnavailableError, or
    CheckpointError when the checkpoint belongs to another run.
    """
    arms = spec.arms()
    if resume is not None and len(arms) * len(spec.seeds) != 1:
        raise SpecificationError("/seeds", "a checkpoint resumes a single run; give one seed and no sweep")
    for _, group in groupby(arms, lambda arm: alike(arm.spec)):
        waiting = [(arm, seed) for arm in group for seed in spec.seeds]
        while waiting:
            members = _gang(waiting)
            if resume is not None:
                members[0].restore(resume.read_bytes())
            while members := [member for member in members if not member.finished]:
                yield from advance(members)


def _gang(waiting: list[tuple[Arm, int]]) -> list[Simulation]:
    """The next runs to be played together, taken from those that wait."""
    members = [_next(waiting)]
    while waiting and members[0].gang_pays and len(members) < settings().gang_size:
        members.append(_next(waiting))
    return members


def _next(waiting: list[tuple[Arm, int]]) -> Simulation:
    arm, seed = waiting.pop(0)
    return Simulation(arm.spec, seed, arm=arm.index)
