"""`fedq webhook create`, `list`, `show`, `edit`, `rotate`, `delete`, `ping`, `deliveries`, `redeliver`."""

import time
from itertools import islice
from typing import Annotated

import typer

from api.cli import webhook_views as views
from api.cli.connection import connect
from api.cli.failures import ExitCode
from api.cli.terminal import AsJson, print_json, show, stderr, tell
from api.client import Client
from api.schemas import Delivery
from fedcore.status import DeliveryStatus
from fedcore.webhooks.kinds import EventKind

LOOK_S = 0.2
PING_S = 30.0

Url = Annotated[str, typer.Argument(metavar="URL", help="Where to send.")]
Webhook = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id.")]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY", help="The delivery's id.")]
Events = Annotated[
    list[EventKind] | None, typer.Option("--event", metavar="EVENT", help=f"What to tell of; may be repeated. {', '.join(EventKind)}.")
]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="What it is for.")]
Experiment = Annotated[str | None, typer.Option("--experiment", metavar="ID", help="Tell of this experiment alone; '' for all.")]
Tag = Annotated[str | None, typer.Option(metavar="TAG", help="Tell of experiments with this tag alone; '' for all.")]
NewUrl = Annotated[str | None, typer.Option("--url", metavar="URL", help="Where to send.")]
Enabled = Annotated[bool | None, typer.Option("--enable/--disable", help="Tell again from now on; or nothing more.")]
Status = Annotated[DeliveryStatus | None, typer.Option(help="List only those with this status.")]
Limit = Annotated[int, typer.Option(min=1, help="List at most so many, the newest.")]


def create(
    url: Url, event: Events = None, name: Name = None, experiment: Experiment = None, tag: Tag = None, as_json: AsJson = False
) -> None:
    """Have changes of status sent to a URL, and print the secret that signs them, this once. Absent --event, of the ends of experiments."""
    with connect() as client:
        made = client.webhooks.create(url, event, name=name, experiment_id=experiment or None, tag=tag or None)
    if as_json:
        print_json(made)
        return
    stderr().print(f"The webhook {made.id}; its secret is not shown again:", markup=False)
    typer.echo(made.secret)


def listing(limit: Limit = 50, as_json: AsJson = False) -> None:
    """List webhooks, newest first."""
    with connect() as client:
        show(list(islice(client.webhooks.list(), limit)), views.webhooks, as_json=as_json)


def display(webhook: Webhook, as_json: AsJson = False) -> None:
    """Show a webhook, and whether it works."""
    with connect() as client:
        show(client.webhooks.get(webhook), views.webhook, as_json=as_json)


def edit(
    webhook: Webhook,
    url: NewUrl = None,
    event: Events = None,
    name: Name = None,
    experiment: Experiment = None,
    tag: Tag = None,
    enabled: Enabled = None,
    as_json: AsJson = False,
) -> None:
    """Change a webhook, disable it or enable it again."""
    wanted = {"url": url, "events": event, "name": name, "enabled": enabled}
    confined = {field: value or None for field, value in (("experiment_id", experiment), ("tag", tag)) if value is not None}
    with connect() as client:
        changed = client.webhooks.edit(webhook, **{field: value for field, value in wanted.items() if value is not None}, **confined)
        show(changed, views.webhook, as_json=as_json)


def rotate(webhook: Webhook, as_json: AsJson = False) -> None:
    """Give a webhook a new secret and print it, this once; the old one signs as well for a day."""
    with connect() as client:
        made = client.webhooks.rotate(webhook)
    print_json(made) if as_json else typer.echo(made.secret)


def delete(webhook: Webhook, as_json: AsJson = False) -> None:
    """Remove a webhook with its log."""
    with connect() as client:
        client.webhooks.delete(webhook)
    tell(None, as_json=as_json, deleted=webhook)


def ping(webhook: Webhook, as_json: AsJson = False) -> None:
    """Send something of no consequence, and show what comes of it within half a minute."""
    with connect() as client:
        delivery = _tried(client, client.webhooks.ping(webhook))
        show(delivery, views.delivery, as_json=as_json)
    if delivery.status is not DeliveryStatus.DELIVERED:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)


def deliveries(webhook: Webhook, status: Status = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List what a webhook was told, or is to be told, newest first."""
    with connect() as client:
        show(list(islice(client.webhooks.deliveries(webhook, status=status), limit)), views.deliveries, as_json=as_json)


def redeliver(webhook: Webhook, delivery: DeliveryId, as_json: AsJson = False) -> None:
    """Send a delivery again, now."""
    with connect() as client:
        show(client.webhooks.redeliver(webhook, delivery), views.delivery, as_json=as_json)


def app() -> typer.Typer:
    """The commands."""
    made = typer.Typer(help="Have changes of status sent to a URL of yours.", no_args_is_help=True)
    commands = (
        *(("create", create), ("list", listing), ("show", display), ("edit", edit), ("rotate", rotate), ("delete", delete)),
        *(("ping", ping), ("deliveries", deliveries), ("redeliver", redeliver)),
    )
    for name, command in commands:
        made.command(name)(command)
    return made


def _tried(client: Client, delivery: Delivery) -> Delivery:
    """The delivery once it was tried, or as it is after a while."""
    deadline = time.monotonic() + PING_S
    while not delivery.attempts and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        delivery = client.webhooks.delivery(delivery.webhook_id, delivery.id)
    return delivery
