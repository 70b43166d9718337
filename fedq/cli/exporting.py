"""`fedq export` and `import`."""

from pathlib import Path
from typing import Annotated

import typer

from fedq.cli.connection import connect
from fedq.cli.terminal import AsJson, ExperimentId, print_json, tell
from fedq.client.exports import Form

To = Annotated[
    Form,
    typer.Option(
        "--to",
        help=(
            "Format: a file for `fedq import`, tables, TensorBoard event files, or an MLflow tracking store."
        ),
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="PATH",
        help="File or folder to write (default: ./EXPERIMENT.fedq.json.gz or ./EXPERIMENT-FORM).",
    ),
]
Tracking = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="MLflow tracking store, e.g. http://host:5000 (default: mlflow.db in the output folder).",
    ),
]
Models = Annotated[bool, typer.Option("--models", help="Include the final models as MLflow artifacts.")]
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A .json or .json.gz file written by `fedq export EXPERIMENT`.")
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
    with connect() as client:
        try:
            where = client.export(experiment, to, output, tracking_uri=tracking_uri, models=models)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--to") from error
    tell(where, as_json=as_json, exported=where)


def import_(file: File, as_json: AsJson = False) -> None:
    """Import an experiment from a file written by `fedq export` and print its id.

    Importing a file again returns the same experiment.
    """
    with connect() as client:
        experiment = client.import_(file)
    print_json(experiment) if as_json else typer.echo(experiment.id)
