"""FedQ itself, as a worker that has all cores: a `Simulation` with the engine that was asked
for.
"""

import os
import sys
from pathlib import Path

from bench.peers.common import Arrays, Channel, folder, serve


class FedQ:
    """One run of the specification."""

    def __init__(self, folder: Path, engine: str) -> None:
        from fedcore import ExperimentSpec, Simulation

        spec = ExperimentSpec.model_validate_json((folder / "spec.json").read_text())
        spec = spec.model_copy(update={"execution": spec.execution.model_copy(update={"engine": engine})})
        self._simulation = Simulation(spec, seed=0, data_dir=folder.parent / "data")

    def play(self, round: int) -> int:
        """The next round, which is `round`."""
        report = self._simulation.advance()
        assert report.round == round, f"asked for round {round}, played {report.round}"
        return report.local_steps

    def model(self) -> Arrays:
        """As the run has it."""
        return {name: value.numpy() for name, value in self._simulation.model().items()}

    def tune(self) -> None:
        """The engine `auto` does."""

    def describe(self) -> str:
        """The engine."""
        return f"engine {self._simulation.facts.choice.engine}"


def main() -> None:
    """Take all cores, then requests."""
    channel = Channel()
    import torch  # Here, so that nothing is printed before.

    torch.set_num_threads(os.cpu_count() or 1)
    serve(channel, FedQ(folder(), sys.argv[2]))


if __name__ == "__main__":
    main()
