"""Values of runs that were stored before the round is taken apart: what a specification computes must
not change with it.

A vector is stored by its norm and by its products with three vectors of random numbers, which no other
vector of this length shares. `python -m tests.builders.stored_values` stores them anew, and prints
which have changed.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore import Simulation

Values = dict[str, list[float]]
"""By name of a vector: its norm, and its three products."""

FILE = Path(__file__).with_suffix(".json")
TOLERANCE = 1e-12
"""Largest difference of values, in norms of the vector: sums in another order agree to 1e-15 in a step."""


def values_of(simulation: Simulation) -> Values:
    """The values of the model and of what clients keep, of a run after its last round."""
    named, population = simulation.model(), len(simulation.context.evaluated.share)
    vectors = {"model": np.concatenate([value.double().cpu().numpy().ravel() for value in named.values()])}
    for name, rows in simulation.state.table.gather(np.arange(population)).items():
        vectors[f"memory.{name}"] = rows.double().cpu().numpy().ravel()
    return {name: _products(vector) for name, vector in vectors.items()}


def _products(vector: NDArray[np.float64]) -> list[float]:
    drawn = np.random.default_rng(len(vector)).normal(size=(3, len(vector)))
    return [float(np.linalg.norm(vector)), *(drawn @ vector).tolist()]


def differences(found: Values, stored: Values, within: float = TOLERANCE) -> list[str]:
    """Names of the vectors that differ by more than `within` norms."""
    return [
        name
        for name in sorted(found.keys() | stored.keys())
        if name not in found or name not in stored or not _agree(found[name], stored[name], within)
    ]


def _agree(found: list[float], stored: list[float], within: float) -> bool:
    return np.allclose(found, stored, rtol=0, atol=within * stored[0] + 1e-15)


def read() -> dict[str, Values]:
    """The stored values by case."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def main() -> None:
    """Store the values of every case."""
    from tests.algorithms import test_catalogue
    from tests.engine import test_round

    plays: dict[str, Callable[[], Simulation]] = {**test_catalogue.STORED, **test_round.STORED}
    before, lines = read(), []
    for case, play in plays.items():
        found = values_of(play())
        if case not in before or (changed := differences(found, before[case])):
            sys.stdout.write(f"{case}: {'new' if case not in before else ', '.join(changed)}\n")
        else:
            found = before[case]
        lines.append(f"{json.dumps(case)}: {json.dumps(found)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
