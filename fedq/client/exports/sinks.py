"""Destinations of exports."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from fedq import schemas
from fedq.client.errors import MissingPackageError

Form = Literal["fedq", "csv", "parquet", "tensorboard", "mlflow"]


class Sink(Protocol):
    """Receives the runs of one experiment."""

    where: str
    """Folder, or URL of a tracking store."""

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], model: Path | None) -> None:
        """Write the rounds of a run, and its final `model` if given."""

    def close(self, results: schemas.Results) -> None:
        """Write the results over all runs and finish."""


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
    """Open the destination of an export of `experiment`: `folder`, or the tracking store at
    `tracking_uri`.

    Raises MissingPackageError if a required package is not installed.
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
