"""`fedq cancel`, `pause`, `resume`, `retry`, `extend`, `delete`."""

from typing import Annotated

import typer
from rich.text import Text

from api.cli.connection import connect
from api.cli.terminal import AsJson, ExperimentId, show, tell
from api.schemas import Experiment
from fedcore.status import Status

Rounds = Annotated[int | None, typer.Option(min=1, metavar="N", help="Rounds of each run in all.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", metavar="SEED", help="A seed to have beside its own; may be repeated.")]


def cancel(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """End an experiment at the next round boundary; what it has done stays."""
    with connect() as client:
        show(client.cancel(experiment), _stopping, as_json=as_json)


def pause(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Stop an experiment at the next round boundary, until `fedq resume`."""
    with connect() as client:
        show(client.pause(experiment), _stopping, as_json=as_json)


def resume(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Let a paused experiment go on exactly where it stopped."""
    with connect() as client:
        show(client.resume(experiment), _status, as_json=as_json)


def retry(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Queue the failed and cancelled runs of an experiment again, from their last checkpoints."""
    with connect() as client:
        show(client.retry(experiment), _status, as_json=as_json)


def extend(experiment: ExperimentId, rounds: Rounds = None, seed: Seeds = None, as_json: AsJson = False) -> None:
    """Let an experiment have more rounds or more seeds; what is done stays, and goes on from its checkpoints."""
    if rounds is None and not seed:
        raise typer.BadParameter("say what it is to have more of", param_hint="--rounds, --seed")
    with connect() as client:
        show(client.extend(experiment, rounds=rounds, seeds=seed), _status, as_json=as_json)


def delete(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Remove an experiment, with its rows and files."""
    with connect() as client:
        client.delete(experiment)
    tell(None, as_json=as_json, deleted=experiment)


def _status(experiment: Experiment) -> Text:
    return Text(f"{experiment.id} {experiment.status}")


def _stopping(experiment: Experiment) -> Text:
    running = experiment.progress.runs.get(Status.RUNNING, 0)
    return _status(experiment).append(f"; runs that stop at their next round boundary: {running}" if running else "")
