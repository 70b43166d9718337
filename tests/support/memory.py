"""Problems with less memory to work in than a process has."""

from fedcore.problems import TrainingProblem
from fedcore.problems.base import WORKING_BYTES
from fedcore.problems.supervised import SupervisedProblem


def confine(problem: TrainingProblem, working_bytes: int) -> None:
    """Give the problem's computations `working_bytes` instead of WORKING_BYTES, and those of mini-batches
    as much less; changes it in place.
    """
    problem.capacity = max(1, problem.capacity * working_bytes // WORKING_BYTES)
    if isinstance(problem, SupervisedProblem):
        problem.step_capacity = max(1, problem.step_capacity * working_bytes // WORKING_BYTES)
