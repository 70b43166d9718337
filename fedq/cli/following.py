"""Waiting for an experiment on a terminal."""

from collections.abc import Sequence

import typer

from fedcore.platform.status import Status
from fedq.cli.failures import ExitCode, complain
from fedq.cli.terminal import stderr
from fedq.client import Client
from fedq.schemas import Experiment


def follow(client: Client, id: str) -> Experiment:
    """Wait until an experiment is finished, with a bar per run on stderr; Ctrl-C leaves it
    running.
    """
    try:
        return client.wait(id, progress=True)
    except KeyboardInterrupt:
        stderr().print(
            f"{id} keeps running: `fedq watch {id}` follows it again, `fedq cancel {id}` cancels it"
        )
        raise


def follow_all(client: Client, ids: Sequence[str]) -> list[Experiment]:
    """Wait for several experiments in order; Ctrl-C leaves all of them running."""
    ended: list[Experiment] = []
    for number, id in enumerate(ids, start=1):
        try:
            ended.append(follow(client, id))
        except KeyboardInterrupt:
            if others := ids[number:]:
                stderr().print(f"the other panels keep running too: {', '.join(others)}")
            raise
    return ended


def conclude(experiment: Experiment) -> None:
    """End the command with the exit code for a finished experiment."""
    conclude_all([experiment])


def conclude_all(experiments: Sequence[Experiment]) -> None:
    """Print why experiments did not succeed and end the command with the exit code for all of
    them.
    """
    unsuccessful = [experiment for experiment in experiments if experiment.status is not Status.SUCCEEDED]
    for one in unsuccessful:
        complain(f"{one.id} {one.status}" + (f": {one.error}" if one.error else ""))
    if unsuccessful:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)
