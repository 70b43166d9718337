"""`fedq export`, `import`, `dataset add`, `list`, `show`, `delete`, `weights add`, `list`, `show`,
`delete`, and `bundle list`, `show`, `get`, `delete`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedcore.lazy import LazyModule
from fedq.cli import views
from fedq.cli.connection import connect
from fedq.cli.terminal import (
    AsJson,
    ExperimentId,
    Limit,
    checking,
    echo,
    print_json,
    show,
    show_newest,
    stderr,
    tell,
)

if TYPE_CHECKING:
    from fedcore.data import description as data_description
else:
    data_description = LazyModule("fedcore.data.description")

To = Annotated[
    Literal["fedq", "csv", "parquet", "tensorboard", "mlflow", "wandb", "optuna"],
    typer.Option(
        "--to",
        help=(
            "Format: a file for `fedq import`, tables, TensorBoard event files, an MLflow tracking store,"
            " offline runs of Weights & Biases, or an Optuna study."
        ),
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="File or folder to write (default: ./EXPERIMENT.fedq.json.gz or ./EXPERIMENT-FORM).",
    ),
]
Tracking = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        help="MLflow tracking store, e.g. http://host:5000 (default: mlflow.db in the output folder).",
    ),
]
Models = Annotated[bool, typer.Option("--models", help="Include the final models as MLflow artifacts.")]
File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A .json or .json.gz file written by `fedq export EXPERIMENT`, or a folder of `fedq run`.",
    ),
]


def export(
    experiment: ExperimentId,
    to: To = "fedq",
    output: Output = None,
    tracking_uri: Tracking = None,
    models: Models = False,
    as_json: AsJson = False,
) -> None:
    """Export every round of every run for another tool and print the path.

    Exporting again updates an existing export.
    """
    with connect() as client, checking("--to"):
        where = client.export(experiment, to, output, tracking_uri=tracking_uri, models=models)
    tell(where, as_json=as_json, exported=where)


def import_(file: File, as_json: AsJson = False) -> None:
    """Import an experiment from a file written by `fedq export`, or from a folder of `fedq run`, and
    print its id.

    Importing it again returns the same experiment.
    """
    with connect() as client:
        experiment = client.import_(file)
    print_json(experiment) if as_json else echo(experiment.id)


DataFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="NPZ or Parquet file with features, label and, optionally, client and test."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the data set (default: the file's name)."),
]
DatasetId = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="Data set: its id, a unique beginning of it, its name, or @last."),
]


def add(file: DataFile, name: Name = None, as_json: AsJson = False) -> None:
    """Upload a data set, show what was read and print its id for problem.dataset:
    {kind: uploaded, id: ...}.

    The same content keeps its id.
    """
    with connect() as client:
        dataset = client.upload(file, name)
    if as_json:
        print_json(dataset)
        return
    stderr().print(views.description(data_description.description_rows(dataset)))
    echo(dataset.id)


def listing(limit: Limit = 20, as_json: AsJson = False) -> None:
    """List uploaded data sets, newest first."""
    with connect() as client:
        show_newest(client.datasets(), limit, views.datasets, as_json=as_json)


def display(dataset: DatasetId, as_json: AsJson = False) -> None:
    """Show the contents of a data set."""
    with connect() as client:
        show(client.dataset(dataset), views.dataset, as_json=as_json)


def delete(dataset: DatasetId, as_json: AsJson = False) -> None:
    """Delete a data set. Refused while an unfinished experiment of yours uses it."""
    with connect() as client:
        dataset = client.dataset(dataset).id
        client.delete_dataset(dataset)
    tell(None, as_json=as_json, deleted=dataset)


WeightsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Safetensors file, config.json or tokenizer.json.")
]
Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="SHA-256 of the file, sha256:...")]


def add_weights(file: WeightsFile, as_json: AsJson = False) -> None:
    """Upload pretrained weights, or the config.json or tokenizer.json of a network, and print the digest:
    for problem.model.weights, problem.model.configuration or problem.dataset.tokenizer.
    """
    with connect() as client:
        uploaded = client.upload_weights(file)
    print_json(uploaded) if as_json else echo(uploaded.digest)


def list_weights(limit: Limit = 20, as_json: AsJson = False) -> None:
    """List uploaded weights, configurations and tokenizers, newest first."""
    with connect() as client:
        show_newest(client.all_weights(), limit, views.weights, as_json=as_json)


def show_weights(digest: Digest, as_json: AsJson = False) -> None:
    """Show the size of uploaded weights."""
    with connect() as client:
        found = client.weights(digest)
    show(found, lambda item: views.weights([item]), as_json=as_json)


def delete_weights(digest: Digest, as_json: AsJson = False) -> None:
    """Delete uploaded weights. Refused while an experiment of yours uses them."""
    with connect() as client:
        client.delete_weights(digest)
    tell(None, as_json=as_json, deleted=digest)


BundleFile = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Tar file to write (default: ./DIGEST.tar, shortened)."
    ),
]


def list_bundles(limit: Limit = 20, as_json: AsJson = False) -> None:
    """List code bundles, newest first."""
    with connect() as client:
        show_newest(client.bundles(), limit, views.bundles, as_json=as_json)


def show_bundle(digest: Digest, as_json: AsJson = False) -> None:
    """Show the files and components of a code bundle."""
    with connect() as client:
        show(client.bundle(digest), views.bundle, as_json=as_json)


def get_bundle(digest: Digest, output: BundleFile = None, as_json: AsJson = False) -> None:
    """Download a code bundle as a tar file and print its path."""
    where = output or Path(f"{digest.removeprefix('sha256:')[:12]}.tar")
    with connect() as client:
        client.download_bundle(digest, where)
    tell(where, as_json=as_json, bundle=digest, file=where)


def delete_bundle(digest: Digest, as_json: AsJson = False) -> None:
    """Delete a code bundle. Refused while an experiment of yours uses it."""
    with connect() as client:
        client.delete_bundle(digest)
    tell(None, as_json=as_json, deleted=digest)
