"""Destinations of exports, and the flat names and values that other tools use."""

import hashlib
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from fedcore.spec.parameters import Value, flatten_document
from fedcore.spec.sweep import expand
from fedq import schemas
from fedq.client.errors import ExportError
from fedq.errors import ClientError, MissingPackageError

ExportForm = Literal["fedq", "csv", "parquet", "tensorboard", "mlflow", "wandb", "optuna"]
WhichModel = Literal["final", "best"]
"""The model after the last round, or after the best evaluated one."""
ModelForm = Literal["onnx", "huggingface"]
"""A format of other tools for models."""


class Sink(Protocol):
    """Receives the runs of one experiment."""

    where: str
    """Folder, or URL of a tracking store."""

    def add(self, run: schemas.Run, rows: Sequence[schemas.RoundRow], model: Path | None) -> None:
        """Write the rounds of a run, and its final `model` if given."""

    def close(self) -> None:
        """Finish after the last run."""


_SINKS: dict[ExportForm, tuple[str, str]] = {
    "tensorboard": ("tensorboard", "TensorBoardRuns"),
    "mlflow": ("tracking", "MlflowRuns"),
    "wandb": ("weights_and_biases", "WandbRuns"),
    "optuna": ("trials", "OptunaTrials"),
}
"""Module and class of each format but tables and files of results; each module loads a library that the
others do without.
"""


def open_sink(
    form: ExportForm, experiment: schemas.Experiment, folder: Path, tracking_uri: str | None = None
) -> Sink:
    """Open the destination of an export of `experiment`: `folder`, or the tracking store at
    `tracking_uri`.

    As the methods of the sink, it raises what the libraries raise; see `export_errors`.
    """
    module_name, class_name = _SINKS[form]
    module = import_module(f"fedq.client.exports.{module_name}")
    sink: Sink = getattr(module, class_name)(experiment, folder, tracking_uri)
    return sink


EXTRAS = {"parquet": "frames", "onnx": "onnx", "huggingface": "transformers"}
"""Extra of FedQ that installs what an export needs, unless it is `export`."""


@contextmanager
def export_errors(tool: str) -> Iterator[None]:
    """Raise whatever is raised in the block as ExportError with its words, or as MissingPackageError if a
    required package is not installed.
    """
    try:
        yield
    except ClientError:
        raise
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(tool, "export")
        raise MissingPackageError(
            f"to export to {tool} needs {error.name}: pip install 'fedq[{extra}]'"
        ) from error
    # Errors of all kinds: of the tool, of what it builds on, of the disk.
    except Exception as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(f"the export to {tool} failed: {words}") from error


@contextmanager
def silence(logger_name: str) -> Iterator[None]:
    """Within the block, a tool gives no warnings, and logs errors alone."""
    logger = logging.getLogger(logger_name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def fit_name(name: str, forbidden: str, longest: int) -> str:
    """`name` as a tool takes it: without the characters of the pattern `forbidden`, and not longer than
    `longest`.
    """
    return re.sub(forbidden, "_", name)[:longest]


def fitted_key(name: str, forbidden: str, longest: int) -> str:
    """`name` as `fitted`, but with a digest at its end if it had to be changed, so that different names
    stay different.
    """
    found = fit_name(name, forbidden, longest)
    if found == name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{found[: longest - len(digest) - 1]}-{digest}"


NO_MEASURES = frozenset({"round", "extra", "committed_at"})
NO_PARAMETERS = frozenset({"name", "description", "tags", "seeds"})


def flatten_row(row: schemas.RoundRow) -> dict[str, float]:
    """Measures of a round by name, without absent ones; entries of a list as `NAME/INDEX`, of a matrix
    as `NAME/ROW/COLUMN`.
    """
    usual = row.model_dump(exclude=set(NO_MEASURES))
    return {name: float(value) for name, value in _entries({**usual, **row.extra}) if value is not None}


def _entries(measures: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for name, value in measures.items():
        if isinstance(value, list):
            yield from _entries({f"{name}/{place}": entry for place, entry in enumerate(value)})
        else:
            yield name, value


def expand_arms(experiment: schemas.Experiment) -> list[dict[str, Any]]:
    """The specification of each arm, without the sweep."""
    return [point.document for point in expand(experiment.specification)]


def flatten_parameters(document: Mapping[str, Any], seed: int) -> dict[str, Value]:
    """Parameters of a run by dotted path: the specification of its arm, without null values, and
    its seed.
    """
    wanted = {name: value for name, value in document.items() if name not in NO_PARAMETERS}
    return dict(flatten_document({"seed": seed, **wanted}))
