"""Facts about a round for measures."""

from dataclasses import dataclass

from torch import Tensor

from fedcore.core import Aggregate, Algorithm, Cohort
from fedcore.engine.assignment import CohortWork


@dataclass(frozen=True, slots=True)
class Observation:
    """A round as seen from above, including facts that no server could know."""

    algorithm: Algorithm
    work: CohortWork
    """The work of the M clients that reached the server, and the model x [D] they started from."""
    deltas: Tensor | None
    """[M, D] y_i - x as the clients computed it, before compression; None where the round was not
    opened to show each.
    """
    cohort: Cohort
    combined: Aggregate
    """The server's direction, what each client's delta counted in it, and the aggregator's book."""
