"""`fedq status` and `fedq watch`."""

from itertools import islice
from typing import Annotated

import typer

from fedcore.platform.status import Status
from fedq.cli import completion, views
from fedq.cli.connection import connect
from fedq.cli.following import conclude, follow
from fedq.cli.terminal import AsJson, ExperimentId, print_json, show, stdout

OptionalId = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPERIMENT]",
        help="Experiment id (default: list all).",
        autocompletion=completion.experiments,
    ),
]
WithStatus = Annotated[
    Status | None, typer.Option("--status", help="List only experiments with this status.")
]
Tag = Annotated[str | None, typer.Option(help="List only experiments with this tag.")]
Name = Annotated[str | None, typer.Option(help="List only experiments with exactly this name.")]
Search = Annotated[
    str | None, typer.Option(help="List only experiments whose name contains this text, ignoring case.")
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help=(
            "Start with `now`, i.e. the current status and newest round of each run, or with the `position`"
            " of results."
        ),
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")]


def status(
    experiment: OptionalId = None,
    with_status: WithStatus = None,
    tag: Tag = None,
    name: Name = None,
    search: Search = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show an experiment and its runs, or list experiments, newest first."""
    with connect() as client:
        if experiment is None:
            items = list(
                islice(client.experiments(status=with_status, tag=tag, name=name, search=search), limit)
            )
            show(items, views.experiments, as_json=as_json)
        elif as_json:
            print_json(client.experiment(experiment))
        else:
            stdout().print(views.experiment(client.experiment(experiment), client.runs(experiment)))


def watch(experiment: ExperimentId, since: Since = None, as_json: AsJson = False) -> None:
    """Follow an experiment until it is finished.

    With --json, print every event from the first round, one per line.
    """
    if since is not None and not as_json:
        raise typer.BadParameter("requires --json", param_hint="--since")
    with connect() as client:
        if as_json:
            for event in client.stream(experiment, since=since):
                typer.echo(event.model_dump_json())
        else:
            follow(client, experiment)
        conclude(client.experiment(experiment))
    if not as_json:
        typer.echo(f"{experiment} succeeded")
