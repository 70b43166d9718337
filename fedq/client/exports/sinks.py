"""Where runs are exported to, one after the other."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from fedq import schemas
from fedq.client.errors import MissingPackageError

Form = Literal["fedq", "csv", "parquet", "tensorboard", "mlflow"]


class Sink(Protocol):
    """Takes the runs of one experiment."""

    where: str
    """The folder, or the address of a tracking store."""

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], model: Path | None) -> None:
        """Write what came out of a run, as far as it is, and its final `model`, where that is
        wanted and there.
        """

    def close(self, results: schemas.Results) -> None:
        """Write what came out of all of them together, and be done."""


_SINKS: dict[Form, tuple[str, str]] = {
    "fedq": ("archive", "ArchiveRuns"),
    "csv": ("tables", "CsvRuns"),
    "parquet": ("columns", "ParquetRuns"),
    "tensorboard": ("tensorboard", "TensorBoardRuns"),
    "mlflow": ("tracking", "MlflowRuns"),
}
"""Module and class of each; each module loads a library that the others do without."""
_EXTRAS: dict[Form, str] = {"parquet": "frames", "tensorboard": "export", "mlflow": "export"}


def open_sink(
    form: Form, experiment: schemas.Experiment, folder: Path, tracking_uri: str | None = None
) -> Sink:
    """Where to put the runs of `experiment`, in `folder` unless a `tracking_uri` names another
    place.

    Raises MissingPackageError where what writes it is not installed.
    """
    module_name, class_name = _SINKS[form]
    try:
        module = import_module(f"fedq.client.exports.{module_name}")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"to export to {form} needs {error.name}: pip install 'fedq[{_EXTRAS[form]}]'"
        ) from error
    sink: Sink = getattr(module, class_name)(experiment, folder, tracking_uri)
    return sink
