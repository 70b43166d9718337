"""`fedq cancel`, `pause`, `resume`, `retry`, `extend`, `delete`."""

from typing import Annotated

import typer
from rich.text import Text

from fedcore.platform.status import Status
from fedq.cli.connection import connect
from fedq.cli.terminal import AsJson, ExperimentId, show, tell
from fedq.schemas import Experiment

Rounds = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="New total number of rounds of each run.")
]
Seeds = Annotated[
    list[int] | None, typer.Option("--seed", metavar="SEED", help="Additional seed; may be repeated.")
]


def cancel(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Cancel an experiment at the next round boundary. Completed rounds are kept."""
    with connect() as client:
        show(client.cancel(experiment), _stopping, as_json=as_json)


def pause(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Pause an experiment at the next round boundary, until `fedq resume`."""
    with connect() as client:
        show(client.pause(experiment), _stopping, as_json=as_json)


def resume(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Resume a paused experiment from exactly where it stopped."""
    with connect() as client:
        show(client.resume(experiment), _status, as_json=as_json)


def retry(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Retry the failed and cancelled runs of an experiment from their last checkpoints."""
    with connect() as client:
        show(client.retry(experiment), _status, as_json=as_json)


def extend(
    experiment: ExperimentId, rounds: Rounds = None, seed: Seeds = None, as_json: AsJson = False
) -> None:
    """Add rounds or seeds to an experiment.

    Completed rounds are kept; runs continue from their checkpoints.
    """
    if rounds is None and not seed:
        raise typer.BadParameter(
            "give a new number of rounds or additional seeds", param_hint="--rounds, --seed"
        )
    with connect() as client:
        show(client.extend(experiment, rounds=rounds, seeds=seed), _status, as_json=as_json)


def delete(experiment: ExperimentId, as_json: AsJson = False) -> None:
    """Delete an experiment with its results and files."""
    with connect() as client:
        client.delete(experiment)
    tell(None, as_json=as_json, deleted=experiment)


def _status(experiment: Experiment) -> Text:
    return Text(f"{experiment.id} {experiment.status}")


def _stopping(experiment: Experiment) -> Text:
    running = experiment.progress.runs.get(Status.RUNNING, 0)
    return _status(experiment).append(
        f"; runs stopping at the next round boundary: {running}" if running else ""
    )
