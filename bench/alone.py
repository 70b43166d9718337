"""Run a specification (JSON on standard input) with `fedcore` alone in this process, and print the
seconds it took.

Imports and the first use of the tensor library, which a warm worker has behind it, are not timed.
"""

import sys
import time

import torch

from fedcore import ExperimentSpec, Simulation, run


def main() -> None:
    """Run a first round untimed, then everything."""
    torch.set_num_threads(1)
    spec = ExperimentSpec.model_validate_json(sys.stdin.read())
    Simulation(spec.arms()[0].spec, spec.seeds[0]).advance()
    began = time.perf_counter()
    for _ in run(spec):
        pass
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
