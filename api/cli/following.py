"""Waiting for an experiment on a terminal."""

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


def conclude(experiment: Experiment) -> None:
    """End the command with the exit code that an ended experiment calls for."""
    if experiment.status is not Status.SUCCEEDED:
        complain(f"{experiment.id} {experiment.status}" + (f": {experiment.error}" if experiment.error else ""))
        raise typer.Exit(ExitCode.UNSUCCESSFUL)
