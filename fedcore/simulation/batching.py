"""Batches of runs: runs of one experiment that advance in lockstep."""

from collections.abc import Hashable, Sequence

from fedcore.engine.round import train_cohorts
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec


def advance_batch(simulations: Sequence[Simulation]) -> list[RoundReport]:
    """Play the next round of each run, whichever that is, and train them together.

    The results have the same bits as each run by itself where the engine promises that; else they
    agree to rounding.
    """
    opened = [simulation.begin() for simulation in simulations]
    members = zip(simulations, opened, train_cohorts(opened), strict=True)
    return [simulation.end(round, trained) for simulation, round, trained in members]


def batch_key(spec: ExperimentSpec) -> Hashable:
    """Key of the runs that are worth training together."""
    problem, execution = spec.problem, spec.execution
    return repr((problem.dataset, problem.model)), execution.engine, spec.precision
