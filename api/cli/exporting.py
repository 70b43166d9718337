"""`fedq export` and `import`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.connection import connect
from api.cli.terminal import AsJson, ExperimentId, print_json, tell
from api.client.exports import Form

To = Annotated[
    Form, typer.Option("--to", help="A file that `fedq import` takes, tables, event files for TensorBoard, or a tracking store of MLflow.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="PATH", help="The file or folder; absent, EXPERIMENT.fedq.json.gz or EXPERIMENT-FORM here."),
]
Tracking = Annotated[
    str | None, typer.Option(metavar="URI", help="MLflow's tracking store, as http://host:5000; absent, mlflow.db in the folder.")
]
Models = Annotated[bool, typer.Option("--models", help="With the final models, as artifacts of MLflow.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="As `fedq export EXPERIMENT` writes it, .json or .json.gz.")]


def export(
    experiment: ExperimentId,
    to: To = "fedq",
    output: Output = None,
    tracking_uri: Tracking = None,
    models: Models = False,
    as_json: AsJson = False,
) -> None:
    """Write every round of every run for another tool and print where it is; done again, it brings up to date what is there."""
    with connect() as client:
        try:
            where = client.export(experiment, to, output, tracking_uri=tracking_uri, models=models)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--to") from error
    tell(where, as_json=as_json, exported=where)


def import_(file: File, as_json: AsJson = False) -> None:
    """Take an experiment from a file that `fedq export` wrote and print its id; the same file twice is the same experiment."""
    with connect() as client:
        experiment = client.import_(file)
    print_json(experiment) if as_json else typer.echo(experiment.id)
