"""`fedq.run`: the experiment runner of the library, with the settings of this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

from fedcore.settings import settings
from fedcore.simulation import local_run
from fedcore.simulation.halving import Decision
from fedcore.simulation.report import RoundReport
from fedcore.spec import ExperimentSpec
from fedcore.spec.experiment import Arm


def run(
    spec: ExperimentSpec,
    resume: Path | None = None,
    decided: Callable[[Decision], None] | None = None,
    proposed: Callable[[Arm], None] | None = None,
) -> Iterator[RoundReport]:
    """Run every arm with every seed, as `fedcore.run` does, with data from FEDQ_DATA_DIR and models that
    FEDQ_MODELS_ALLOWED allows; yields one report per round.

    Raises SettingsError, SpecificationError, DataUnavailableError, or CheckpointError if the checkpoint
    `resume` belongs to another run.
    """
    configured = settings()
    return local_run.run(
        spec,
        resume,
        decided,
        proposed,
        data_dir=configured.datasets,
        models_allowed=configured.models_allowed,
    )
