"""FedQ's algorithm library: federated-learning experiments as specifications, carried out round by round.

from fedcore import ExperimentSpec, run

for report in run(ExperimentSpec.model_validate(document)):
    print(report.round, report.train_loss)
"""

from typing import TYPE_CHECKING, Any

from fedcore.spec import ExperimentSpec

if TYPE_CHECKING:
    from fedcore.experiment import RoundReport, Simulation, run

__all__ = ["ExperimentSpec", "RoundReport", "Simulation", "run"]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for, so that the API process never does."""
    if name in ("RoundReport", "Simulation", "run"):
        import fedcore.experiment as module

        return getattr(module, name)
    raise AttributeError(f"module 'fedcore' has no attribute {name!r}")
