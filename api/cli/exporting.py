"""`fedq export`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.connection import connect
from api.cli.terminal import AsJson, ExperimentId, tell
from api.client.exports import Form

To = Annotated[Form, typer.Option("--to", help="Tables, event files for TensorBoard, or a tracking store of MLflow.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FOLDER", help="Where to write it; absent, EXPERIMENT-FORM here.")]
Tracking = Annotated[
    str | None, typer.Option(metavar="URI", help="MLflow's tracking store, as http://host:5000; absent, mlflow.db in the folder.")
]
Models = Annotated[bool, typer.Option("--models", help="With the final models, as artifacts of MLflow.")]


def export(
    experiment: ExperimentId,
    to: To,
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
