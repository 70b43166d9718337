"""Who can be reached in a round."""

import numpy as np
from numpy.typing import NDArray

from fedcore.data.random import generator
from fedcore.spec.availability import AnyAvailability, AvailabilityTrace

Ids = NDArray[np.int64]


def reachable(availability: AnyAvailability | None, population: int, seed: int, round: int) -> Ids | None:
    """The ids of the clients that can be reached in a round (counted from 1), ascending; None where all can."""
    match availability:
        case None:
            return None
        case AvailabilityTrace(rounds=rounds):
            return np.unique(np.array(rounds[(round - 1) % len(rounds)], np.int64))
        case _:
            lot = generator(seed, "availability", round).random(population)
            return np.flatnonzero(lot < np.array(availability.probability))
