"""Waiting for an experiment on a terminal."""

from collections.abc import Sequence

import typer

from api.cli.failures import ExitCode, complain
from api.cli.terminal import stderr
from api.client import Client
from api.schemas import Experiment
from fedcore.status import Status


def follow(client: Client, id: str) -> Experiment:
    """Wait until an experiment has ended, with a bar per run on stderr; Ctrl-C leaves it running."""
    try:
        return client.wait(id, progress=True)
    except KeyboardInterrupt:
        stderr().print(f"{id} goes on without you: `fedq watch {id}` follows it again, `fedq cancel {id}` ends it")
        raise


def follow_all(client: Client, ids: Sequence[str]) -> list[Experiment]:
    """Wait for one after another; Ctrl-C leaves them all running."""
    ended: list[Experiment] = []
    for number, id in enumerate(ids, start=1):
        try:
            ended.append(follow(client, id))
        except KeyboardInterrupt:
            if others := ids[number:]:
                stderr().print(f"so do the other panels: {', '.join(others)}")
            raise
    return ended


def conclude(experiment: Experiment) -> None:
    """End the command with the exit code that an ended experiment calls for."""
    conclude_all([experiment])


def conclude_all(experiments: Sequence[Experiment]) -> None:
    """End the command with the exit code that ended experiments call for, having said of each that did not succeed why."""
    unsuccessful = [experiment for experiment in experiments if experiment.status is not Status.SUCCEEDED]
    for one in unsuccessful:
        complain(f"{one.id} {one.status}" + (f": {one.error}" if one.error else ""))
    if unsuccessful:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)
