"""Library of federated-learning experiments: specifications, run round by round.

from fedcore import ExperimentSpec, run

for report in run(ExperimentSpec.model_validate(document)):
    print(report.round, report.train_loss)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.simulation.local_run import run
    from fedcore.simulation.report import RoundReport
    from fedcore.simulation.simulation import Simulation
    from fedcore.spec import ExperimentSpec

_MODULES = {
    "ExperimentSpec": "fedcore.spec.experiment",
    "RoundReport": "fedcore.simulation.report",
    "Simulation": "fedcore.simulation.simulation",
    "run": "fedcore.simulation.local_run",
}

__all__ = ["ExperimentSpec", "RoundReport", "Simulation", "run"]


def __getattr__(name: str) -> Any:
    """Import on first use: `fedcore.errors` needs none of them, and the API process never loads torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedcore' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
