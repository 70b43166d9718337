"""An experiment carried out without a service, one process and no database."""

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from fedcore.errors import SpecificationError
from fedcore.experiment import Simulation
from fedcore.gang import advance, alike
from fedcore.halving import Decision
from fedcore.report import RoundReport
from fedcore.settings import settings
from fedcore.spec import ExperimentSpec
from fedcore.spec.experiment import Arm
from fedcore.tournament import Tournament


def run(spec: ExperimentSpec, resume: Path | None = None, decided: Callable[[Decision], None] | None = None) -> Iterator[RoundReport]:
    """Carry out every arm with every seed, under a search as far as it is promoted; one report per round.

    Runs come one after another, or in gangs where that is faster: then the reports of a round follow one another. `resume` is
    a checkpoint to go on from, for a specification of a single run. `decided` is told each decision of a search. Raises SpecificationError,
    DataUnavailableError, or CheckpointError when the checkpoint belongs to another run.
    """
    arms = spec.arms()
    if resume is not None and len(arms) * len(spec.seeds) != 1:
        raise SpecificationError("/seeds", "a checkpoint resumes a single run; give one seed and no sweep")
    if spec.search is not None:
        with TemporaryDirectory() as folder:
            yield from Tournament(spec, spec.search, Path(folder), decided or (lambda _: None)).play()
        return
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
